"""Record what the released `sagemaker` package sends to CreateTrainingJob for each case of cases.json; no network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/sagemaker/ask_peer.py [FOLDER]`.
Writes one file per case, FOLDER/<name>.json (default: golden/ next to this file). A file holds the request that the
package sent, or `{"error": "ValueError: ..."}`. A hook in boto answers all calls, so no request leaves the machine.
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
from sagemaker.estimator import Estimator
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

FOLDER = Path(__file__).parent
KINDS = {"Estimator": Estimator, "PyTorch": PyTorch, "TensorFlow": TensorFlow}


class Recorder:
    """Answers boto's requests, and records the request that creates a training job."""

    def __init__(self):
        self.request = None

    def answer(self, request, **_):
        body = "{}"
        if request.headers.get("X-Amz-Target") == b"SageMaker.CreateTrainingJob":
            self.request = json.loads(request.body)
            body = '{"TrainingJobArn": "arn:aws:sagemaker:us-west-2:123456789012:training-job/none"}'
        elif "s3" in request.url:
            body = ""
        elif "iam." in request.url:
            body = ROLE
        answer = AWSResponse(request.url, 200, {"Content-Type": "application/json"}, io.BytesIO(body.encode()))
        answer._content = body.encode()
        return answer


ROLE = (
    "<GetRoleResponse><GetRoleResult><Role><Arn>arn:aws:iam::123456789012:role/train</Arn></Role></GetRoleResult>"
    "</GetRoleResponse>"
)


def ask(case, session, recorder):
    arguments = dict(case["arguments"])
    if "instance_groups" in arguments:
        arguments["instance_groups"] = groups(arguments["instance_groups"])
    if "instance_groups" in arguments.get("distribution", {}):
        names = arguments["distribution"]["instance_groups"]
        by_name = {group.instance_group_name: group for group in arguments["instance_groups"]}
        arguments["distribution"] = {**arguments["distribution"], "instance_groups": [by_name[name] for name in names]}
    try:
        estimator = KINDS[case["estimator"]](sagemaker_session=session, **arguments)
        estimator.fit(inputs(case.get("inputs")), wait=False, job_name="digits-1")
    except Exception as error:  # noqa: BLE001 - any error is the recorded answer
        return {"error": f"{type(error).__name__}: {error}"}
    return recorder.request


def groups(descriptions):
    return [
        InstanceGroup(*(group[f"instance_{key}"] for key in ("group_name", "type", "count"))) for group in descriptions
    ]


def inputs(value):
    return {name: channel(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def channel(value):
    if isinstance(value, str):
        return value
    if "file_system_id" in value:
        return FileSystemInput(**value)
    arguments = dict(value)
    if "shuffle_config" in arguments:
        arguments["shuffle_config"] = ShuffleConfig(arguments["shuffle_config"]["seed"])
    return TrainingInput(**arguments)


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
            with redirect_stdout(io.StringIO()):
                answer = ask(case, session, recorder)
            (folder / f"{case['name']}.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
