"""Helpers that prepare the mock's account, submit jobs to it, and read what it holds."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from herringbone import PyTorch, TrainingJob

ACCOUNT, REGION = "123456789012", "eu-central-1"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
# An image of another account, like AWS's own images: `fit` does not look it up.
IMAGE = f"999999999999.dkr.ecr.{REGION}.amazonaws.com/mine/pytorch:1"
TRUST = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}


class RequestRecorder:
    """Wraps a user's boto3 session, records the operations that it sends, and scripts answers.

    >>> recorder.operations("s3")                 # doctest: +SKIP
    ['HeadBucket', 'HeadObject', 'PutObject']
    """

    def __init__(self) -> None:
        import boto3
        import botocore.session

        session = botocore.session.Session()
        session.register_component("data_loader", _loader())
        self.boto = boto3.Session(botocore_session=session)
        self.sent: list[tuple[str, str]] = []
        self.boto.events.register("before-call", self._record)

    def _record(self, model: Any, **_: Any) -> None:
        self.sent.append((model.service_model.service_name, model.name))

    def operations(self, service: str) -> list[str]:
        return [operation for name, operation in self.sent if name == service]

    def on(self, operation: str, action: Any) -> None:
        """Call `action()` in place of sending an operation: it raises an error, returns an answer, or None to send."""
        self.boto.events.register(f"before-send.{operation}", lambda **_: action())


@cache
def _loader() -> Any:
    """Return one loader of service models for all sessions of all tests."""
    from botocore.loaders import Loader

    return Loader()


@cache
def client(boto: Any, service: str) -> Any:
    """Return a cached client of a session: creating one takes longer than most requests."""
    return boto.client(service)


JSON = '{{"__type": "{code}", "message": "{message}"}}'
XML = "<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"


def answer(status: int, code: str, message: str = "", *, form: str = JSON) -> Any:
    """Return an error answer in the JSON form of SageMaker, or with `form=XML` in the form of older services."""
    from botocore.awsrequest import AWSResponse

    response = AWSResponse("https://sagemaker", status, {"Content-Type": "application/x-amz-json-1.1"}, None)
    response._content = form.format(code=code, message=message).encode()
    return response


def make_role(boto: Any, name: str = "training", trust: Any = TRUST) -> str:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    created = client(boto, "iam").create_role(RoleName=name, AssumeRolePolicyDocument=policy)
    arn: str = created["Role"]["Arn"]
    return arn


def push_image(boto: Any) -> None:
    """Push the image `mine:1` to the account's registry."""
    ecr = client(boto, "ecr")
    ecr.create_repository(repositoryName="mine")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
    ecr.put_image(repositoryName="mine", imageTag="1", imageManifest=json.dumps(manifest))


def estimator(recorder: RequestRecorder, **arguments: Any) -> PyTorch:
    return PyTorch(
        **{
            "entry_point": "train.py",
            "image_uri": IMAGE,
            "instance_type": "ml.m5.large",
            "role": "training",
            "sagemaker_session": recorder.boto,
            **arguments,
        }
    )


def fit(
    recorder: RequestRecorder, inputs: Any = None, job_name: str | None = "digits-1", **arguments: Any
) -> TrainingJob:
    return estimator(recorder, **arguments).fit(inputs, wait=False, job_name=job_name)


def keys(boto: Any, bucket: str = BUCKET) -> list[str]:
    """Return the keys of a bucket's objects, [] where the bucket does not exist."""
    s3 = client(boto, "s3")
    if bucket not in [row["Name"] for row in s3.list_buckets()["Buckets"]]:
        return []
    return [row["Key"] for row in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def described(boto: Any, name: str = "digits-1") -> dict[str, Any]:
    description: dict[str, Any] = client(boto, "sagemaker").describe_training_job(TrainingJobName=name)
    return description


def job_names(boto: Any) -> list[str]:
    listed = client(boto, "sagemaker").list_training_jobs()
    return [row["TrainingJobName"] for row in listed["TrainingJobSummaries"]]
