"""Record the hyperparameters of the released `sagemaker` package for each case of cases.json, without a network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/peer/ask_peer.py > answers.json`.
An answer is the estimator's `hyperparameters()`, or `{"error": "ValueError: ..."}`.
"""

# ruff: noqa: E402 - the environment has to be set before the import of the peer
import io
import json
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

# Before the import: switch off telemetry, settings of this machine, and requests to an instance's metadata service.
os.environ.update(
    AWS_EC2_METADATA_DISABLED="true",
    AWS_ACCESS_KEY_ID="none",
    AWS_SECRET_ACCESS_KEY="none",  # noqa: S106
    SAGEMAKER_SUPPRESS_V2_WARNING="1",
    SAGEMAKER_USER_CONFIG_OVERRIDE=os.devnull,
    SAGEMAKER_ADMIN_CONFIG_OVERRIDE=os.devnull,
)
logging.disable(logging.CRITICAL)

import boto3
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
