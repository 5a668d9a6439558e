"""Record what the released `sagemaker` package sends for each tuner of cases.json; no network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/sdk/tuner/service/ask_peer.py
[FOLDER]`. Writes one file per case, FOLDER/<name>.json (default: golden/ next to this file). A file holds the
CreateHyperParameterTuningJob request that the package sent, or `{"error": "ValueError: ..."}`. A hook in boto answers
all calls, so no request leaves the machine.
"""

# ruff: noqa: E402 - the environment must be set before the peer is imported
import io
import json
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

# The package reads these at import: no telemetry, no settings of this machine, no request to the metadata service.
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
from botocore.awsrequest import AWSResponse
from sagemaker import tuner as peer
from sagemaker.estimator import Estimator
from sagemaker.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

FOLDER = Path(__file__).parent
KINDS = {"Estimator": Estimator, "PyTorch": PyTorch, "TensorFlow": TensorFlow}
RANGES = {"continuous": ContinuousParameter, "integer": IntegerParameter, "categorical": CategoricalParameter}
ARN = '{"HyperParameterTuningJobArn": "arn:aws:sagemaker:us-west-2:123456789012:hyper-parameter-tuning-job/none"}'
ROLE = (
    "<GetRoleResponse><GetRoleResult><Role><Arn>arn:aws:iam::123456789012:role/train</Arn></Role></GetRoleResult>"
    "</GetRoleResponse>"
)


class Recorder:
    """Answers boto's requests, and records the request that creates a tuning job."""

    def __init__(self):
        self.request = None

    def answer(self, request, **_):
        body = "{}"
        if request.headers.get("X-Amz-Target") == b"SageMaker.CreateHyperParameterTuningJob":
            self.request = json.loads(request.body)
            body = ARN
        elif "s3" in request.url:
            body = ""
        elif "iam." in request.url:
            body = ROLE
        answer = AWSResponse(request.url, 200, {"Content-Type": "application/json"}, io.BytesIO(body.encode()))
        answer._content = body.encode()
        return answer


def ask(case, session, recorder):
    try:
        tuner = tuner_of(case, session)
        # Where estimators have names, the package wants this flag for each of them; the default is refused.
        names = case.get("estimators") or {case.get("tuner", {}).get("estimator_name"): None}
        metadata = {} if None in names else {"include_cls_metadata": dict.fromkeys(names, False)}
        tuner.fit(case.get("inputs"), wait=False, job_name="digits-1", **metadata)
    except Exception as error:  # noqa: BLE001 - any error is the recorded answer
        return {"error": f"{type(error).__name__}: {error}"}
    return recorder.request


def tuner_of(case, session):
    settings = settings_of(case.get("tuner", {}))
    if "estimators" in case:
        return peer.HyperparameterTuner.create(
            estimator_dict={name: estimator(entry, session) for name, entry in case["estimators"].items()},
            hyperparameter_ranges_dict={name: ranges(entry) for name, entry in case["ranges"].items()},
            **settings,
        )
    return peer.HyperparameterTuner(
        estimator(case, session), hyperparameter_ranges=ranges(case.get("ranges", {})), **settings
    )


def estimator(entry, session):
    return KINDS[entry["estimator"]](sagemaker_session=session, **entry["arguments"])


def ranges(entries):
    return {name: RANGES[kind](*arguments) for name, (kind, *arguments) in entries.items()}


def settings_of(entries):
    settings = dict(entries)
    if warm_start := settings.get("warm_start_config"):
        kind, parents = warm_start
        settings["warm_start_config"] = peer.WarmStartConfig(peer.WarmStartTypes(kind), set(parents))
    if resources := settings.get("strategy_config"):
        settings["strategy_config"] = peer.StrategyConfig(peer.HyperbandStrategyConfig(**resources))
    if criteria := settings.get("completion_criteria_config"):
        settings["completion_criteria_config"] = peer.TuningJobCompletionCriteriaConfig(**criteria)
    return settings


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else FOLDER / "golden").resolve()
    folder.mkdir(exist_ok=True)
    recorder = Recorder()
    boto = boto3.Session(region_name="us-west-2")
    boto.events.register("before-send", recorder.answer)
    session = sagemaker.Session(boto_session=boto, default_bucket="bucket")
    session._default_bucket = "bucket"  # otherwise the package would look for the bucket, and create it
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").touch()
        os.chdir(name)
        for case in json.loads((FOLDER / "cases.json").read_text()):
            recorder.request = None
            with redirect_stdout(io.StringIO()):
                answer = ask(case, session, recorder)
            (folder / f"{case['name']}.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
