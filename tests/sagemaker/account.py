"""What a test does in the mock's account beside the code under test."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from herringbone import PyTorch, TrainingJob

ACCOUNT, REGION = "123456789012", "eu-central-1"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
# Another account's, as AWS's own images are: nobody looks for it.
IMAGE = f"999999999999.dkr.ecr.{REGION}.amazonaws.com/mine/pytorch:1"
TRUST = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}


class Wire:
    """A boto3 session of the user's that tells what it sends, and may be told what to answer.

    >>> wire.operations("s3")                     # doctest: +SKIP
    ['HeadBucket', 'HeadObject', 'PutObject']
    """

    def __init__(self) -> None:
        import boto3
        import botocore.session

        session = botocore.session.Session()
        session.register_component("data_loader", _loader())
        self.boto = boto3.Session(botocore_session=session)
        self.sent: list[tuple[str, str]] = []
        self.boto.events.register("before-call", self._note)

    def _note(self, model: Any, **_: Any) -> None:
        self.sent.append((model.service_model.service_name, model.name))

    def operations(self, service: str) -> list[str]:
        return [operation for of, operation in self.sent if of == service]

    def on(self, operation: str, do: Any) -> None:
        """Have `do()` called where an operation is sent: it raises what the network does, or returns an answer."""
        self.boto.events.register(f"before-send.{operation}", lambda **_: do())


@cache
def _loader() -> Any:
    """The services' models, read once for all sessions of all tests."""
    from botocore.loaders import Loader

    return Loader()


@cache
def client(boto: Any, service: str) -> Any:
    """A session's client, made once: making one takes longer than most questions."""
    return boto.client(service)


JSON = '{{"__type": "{code}", "message": "{message}"}}'
XML = "<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"


def answer(status: int, code: str, message: str = "", *, form: str = JSON) -> Any:
    """An error as SageMaker's service answers it, or in the form of the older services."""
    from botocore.awsrequest import AWSResponse

    said = AWSResponse("https://sagemaker", status, {"Content-Type": "application/x-amz-json-1.1"}, None)
    said._content = form.format(code=code, message=message).encode()
    return said


def make_role(boto: Any, name: str = "training", trust: Any = TRUST) -> str:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    made = client(boto, "iam").create_role(RoleName=name, AssumeRolePolicyDocument=policy)
    arn: str = made["Role"]["Arn"]
    return arn


def push_image(boto: Any) -> None:
    """Put `mine:1` into the account's registry."""
    ecr = client(boto, "ecr")
    ecr.create_repository(repositoryName="mine")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
    ecr.put_image(repositoryName="mine", imageTag="1", imageManifest=json.dumps(manifest))


def estimator(wire: Wire, **given: Any) -> PyTorch:
    return PyTorch(
        **{
            "entry_point": "train.py",
            "image_uri": IMAGE,
            "instance_type": "ml.m5.large",
            "role": "training",
            "sagemaker_session": wire.boto,
            **given,
        }
    )


def fit(wire: Wire, inputs: Any = None, job_name: str | None = "digits-1", **given: Any) -> TrainingJob:
    return estimator(wire, **given).fit(inputs, wait=False, job_name=job_name)


def keys(boto: Any, bucket: str = BUCKET) -> list[str]:
    """The objects of a bucket, [] where there is no bucket."""
    s3 = client(boto, "s3")
    if bucket not in [row["Name"] for row in s3.list_buckets()["Buckets"]]:
        return []
    return [row["Key"] for row in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def described(boto: Any, name: str = "digits-1") -> dict[str, Any]:
    answered: dict[str, Any] = client(boto, "sagemaker").describe_training_job(TrainingJobName=name)
    return answered


def job_names(boto: Any) -> list[str]:
    listed = client(boto, "sagemaker").list_training_jobs()
    return [row["TrainingJobName"] for row in listed["TrainingJobSummaries"]]
