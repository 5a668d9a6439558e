"""Record the hyperparameters of the released `sagemaker` package for each case of cases.json, without a network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/peer/ask_peer.py > answers.json`.
An answer is the estimator's `hyperparameters()`, or `{"error": "ValueError: ..."}`.
"""

import io
import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import boto3
import recording  # noqa: F401 - sets the environment before the peer is imported
import sagemaker
from sagemaker.estimator import Estimator
from sagemaker.huggingface import HuggingFace
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

INSTANCE_TYPE = "ml.p4d.24xlarge"
ESTIMATORS = {
    "PyTorch": (PyTorch, {"framework_version": "2.0.0", "py_version": "py310"}),
    "TensorFlow": (TensorFlow, {"framework_version": "2.11", "py_version": "py39", "model_dir": False}),
    "HuggingFace": (
        HuggingFace,
        {"transformers_version": "4.28.1", "pytorch_version": "2.0.0", "py_version": "py310"},
    ),
    "Estimator": (Estimator, {"image_uri": "image"}),
}


def answer(case, session, folder):
    kind, options = ESTIMATORS[case["estimator"]]
    try:
        estimator = kind(
            entry_point=str(folder / "train.py"),
            role="arn:aws:iam::123456789012:role/none",
            instance_type=INSTANCE_TYPE,
            instance_count=1,
            sagemaker_session=session,
            distribution=case["distribution"],
            hyperparameters=case.get("hyperparameters"),
            **options,
        )
        return estimator.hyperparameters()
    except Exception as error:  # noqa: BLE001 - any error is the answer
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    cases = json.loads(Path(__file__).with_name("cases.json").read_text())
    session = sagemaker.Session(boto_session=boto3.Session(region_name="us-west-2"), default_bucket="none")
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        (Path(name) / "train.py").touch()
        answers = {case["name"]: answer(case, session, Path(name)) for case in cases}
    json.dump(
        {"version": sagemaker.__version__, "instance_type": INSTANCE_TYPE, "answers": answers}, sys.stdout, indent=1
    )
    print()


if __name__ == "__main__":
    main()
