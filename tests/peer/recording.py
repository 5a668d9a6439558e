"""Record what the released `sagemaker` package sends for each call of a cases.json; no network. Its Python runs this.

A hook in boto answers all calls, so no request leaves the machine. Import this module before `sagemaker`.
"""

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

ROLE = (
    "<GetRoleResponse><GetRoleResult><Role><Arn>arn:aws:iam::123456789012:role/train</Arn></Role></GetRoleResult>"
    "</GetRoleResponse>"
)


class Recorder:
    """Answers boto's requests, and records the one of an operation, such as CreateTrainingJob."""

    def __init__(self, operation, answer):
        self._target, self._answer, self.request = f"SageMaker.{operation}".encode(), json.dumps(answer), None

    def answer(self, request, **_):
        from botocore.awsrequest import AWSResponse

        body = "{}"
        if request.headers.get("X-Amz-Target") == self._target:
            self.request = json.loads(request.body)
            body = self._answer
        elif "s3" in request.url:
            body = ""
        elif "iam." in request.url:
            body = ROLE
        answer = AWSResponse(request.url, 200, {"Content-Type": "application/json"}, io.BytesIO(body.encode()))
        answer._content = body.encode()
        return answer


def record(folder, recorder, call):
    """Write one file per case, golden/<name>.json in the folder, or in the folder that the command names.

    A file holds the request that the package sent for `call(case, session)`, or `{"error": "ValueError: ..."}`.
    """
    import boto3
    import sagemaker

    golden = Path(sys.argv[1] if len(sys.argv) > 1 else folder / "golden").resolve()
    golden.mkdir(exist_ok=True)
    boto = boto3.Session(region_name="us-west-2")
    boto.events.register("before-send", recorder.answer)
    session = sagemaker.Session(boto_session=boto, default_bucket="bucket")
    session._default_bucket = "bucket"  # otherwise the package would look for the bucket, and create it
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "train.py").touch()
        os.chdir(name)
        for case in json.loads((folder / "cases.json").read_text()):
            recorder.request = None
            with redirect_stdout(io.StringIO()):
                answer = _request(case, session, recorder, call)
            (golden / f"{case['name']}.json").write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")


def _request(case, session, recorder, call):
    try:
        call(case, session)
    except Exception as error:  # noqa: BLE001 - any error is the recorded answer
        return {"error": f"{type(error).__name__}: {error}"}
    return recorder.request
