"""Record what the released `sagemaker` package sends to CreateTrainingJob for each case of cases.json; no network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/sagemaker/ask_peer.py [FOLDER]`.
One file per case, FOLDER/<name>.json (default: golden/ beside this file): the request as it went over the wire, or
`{"error": "ValueError: ..."}`. Every call of AWS is answered inside boto, before it leaves.
"""

# ruff: noqa: E402 - the environment has to be set before the peer is imported
import io
import json
import logging
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

# Before the import: no telemetry, no settings of this machine, no question to an instance's metadata service.
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

HERE = Path(__file__).parent
KINDS = {"Estimator": Estimator, "PyTorch": PyTorch, "TensorFlow": TensorFlow}


class Wire:
    """Answers what boto would send, and keeps the training job's request."""

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


def ask(case, session, wire):
    arguments = dict(case["arguments"])
    if "instance_groups" in arguments:
        arguments["instance_groups"] = groups(arguments["instance_groups"])
    if "instance_groups" in arguments.get("distribution", {}):
        chosen = arguments["distribution"]["instance_groups"]
        own = {group.instance_group_name: group for group in arguments["instance_groups"]}
        arguments["distribution"] = {**arguments["distribution"], "instance_groups": [own[name] for name in chosen]}
    try:
        estimator = KINDS[case["estimator"]](sagemaker_session=session, **arguments)
        estimator.fit(inputs(case.get("inputs")), wait=False, job_name="digits-1")
    except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return wire.request


def groups(described):
    return [
        InstanceGroup(*(group[f"instance_{key}"] for key in ("group_name", "type", "count"))) for group in described
    ]


def inputs(given):
    return {name: channel(value) for name, value in given.items()} if isinstance(given, dict) else given


def channel(given):
    if isinstance(given, str):
        return given
    if "file_system_id" in given:
        return FileSystemInput(**given)
    given = dict(given)
    if "shuffle_config" in given:
        given["shuffle_config"] = ShuffleConfig(given["shuffle_config"]["seed"])
    return TrainingInput(**given)


def main():
    into = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "golden").resolve()
    into.mkdir(exist_ok=True)
    wire = Wire()
    boto = boto3.Session(region_name="us-west-2")
    boto.events.register("before-send", wire.answer)
    session = sagemaker.Session(boto_session=boto, default_bucket="bucket")
    session._default_bucket = "bucket"  # else it would be looked for, and made
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").touch()
        os.chdir(name)
        for case in json.loads((HERE / "cases.json").read_text()):
            with redirect_stdout(io.StringIO()):
                answer = ask(case, session, wire)
            (into / f"{case['name']}.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
