"""`sagemaker.session`: the session of a notebook: its bucket, its role, and what it asks of jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import herringbone
from herringbone import TrainingInput
from herringbone.serve.settings import DEFAULT_ACCOUNT
from sagemaker import _absent, _notebook
from sagemaker.job import TrainingJob
from sagemaker.tuner import HyperparameterTuner

# The name of SDK v1.
s3_input = TrainingInput
_ROLE = "herringbone-own-hosts"


class Session:
    """Stands for the account: `Session(boto_session)`. Jobs on your own machines need none.

    >>> Session().upload_data("/tmp", key_prefix="mnist")           # doctest: +SKIP
    'file:///tmp'
    """

    # What notebooks ask for to choose their way.
    local_mode = False
    config: dict[str, Any] | None = None

    def __init__(
        self,
        boto_session: Any = None,
        sagemaker_client: Any = None,
        sagemaker_runtime_client: Any = None,
        sagemaker_featurestore_runtime_client: Any = None,
        default_bucket: str | None = None,
        settings: Any = None,
        sagemaker_metrics_client: Any = None,
        sagemaker_config: Any = None,
        default_bucket_prefix: str | None = None,
    ) -> None:
        # Clients of services that do not train; the other ones are made when a notebook asks for them.
        self._clients = {
            "sagemaker-runtime": sagemaker_runtime_client,
            "sagemaker-featurestore-runtime": sagemaker_featurestore_runtime_client,
            "sagemaker-metrics": sagemaker_metrics_client,
        }
        self.settings, self.sagemaker_config = settings, sagemaker_config
        if sagemaker_client is not None and not _notebook.on_own_hosts(os.environ):
            raise herringbone.UnsupportedError(
                "Session: sagemaker_client: jobs on ml.* are asked for by a client of boto_session; give that instead"
            )
        self._sagemaker_client = sagemaker_client
        # The names that Herringbone reads of a session of AWS's SDK.
        self._boto_session = boto_session
        self._default_bucket_name_override = default_bucket
        self.default_bucket_prefix = default_bucket_prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return what refuses to be called, for what SDK v2's session has beside training."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(_refuse, name)

    @property
    def boto_session(self) -> Any:
        """The session of boto3; made at the first use, which needs the extra `aws`."""
        if self._boto_session is None:
            try:
                import boto3
            except ImportError:
                raise herringbone.UnsupportedError(
                    "Session: this call asks AWS, and boto3 is missing: pip install boto3"
                ) from None
            self._boto_session = boto3.Session()
        return self._boto_session

    @property
    def boto_region_name(self) -> str | None:
        """The region of the boto3 session."""
        region: str | None = self.boto_session.region_name
        return region

    @property
    def sagemaker_client(self) -> Any:
        """The client of SageMaker's API."""
        if self._sagemaker_client is None:
            self._sagemaker_client = self.boto_session.client("sagemaker")
        return self._sagemaker_client

    @property
    def sagemaker_runtime_client(self) -> Any:
        """The client of endpoints, which are AWS's alone."""
        return self._clients["sagemaker-runtime"] or self.boto_session.client("sagemaker-runtime")

    @property
    def sagemaker_featurestore_runtime_client(self) -> Any:
        """The client of feature stores, which are AWS's alone."""
        name = "sagemaker-featurestore-runtime"
        return self._clients[name] or self.boto_session.client(name)

    @property
    def sagemaker_metrics_client(self) -> Any:
        """The client of metrics of experiments, which are AWS's alone."""
        return self._clients["sagemaker-metrics"] or self.boto_session.client("sagemaker-metrics")

    @property
    def s3_client(self) -> Any:
        """The client of S3."""
        return self.boto_session.client("s3")

    @property
    def s3_resource(self) -> Any:
        """The resource of S3."""
        return self.boto_session.resource("s3")

    # The account

    def account_id(self) -> str:
        """Return the account's number; asks AWS who you are."""
        account: str = self._identity()["Account"]
        return account

    def get_caller_identity_arn(self) -> str:
        """Return the ARN of the caller."""
        arn: str = self._identity()["Arn"]
        return arn

    def _identity(self) -> Any:
        try:
            return self.boto_session.client("sts").get_caller_identity()
        except Exception as error:
            if type(error).__name__ not in ("NoCredentialsError", "NoRegionError", "PartialCredentialsError"):
                raise
            way = "or your own hosts with HERRINGBONE_INSTANCE_TYPE, which need no account"
            if _notebook.on_own_hosts(os.environ):
                way = "or cure what the first line of this process says about the stand-in for AWS"
            raise herringbone.AwsCredentialsError(
                f"Session: this call asks AWS who you are, and there is no account here: {error}. Name the bucket with"
                f" Session(default_bucket=...), {way}"
            ) from None

    def expand_role(self, role: str) -> str:
        """Return the ARN of a role."""
        return role if "/" in role else f"arn:aws:iam::{self.account_id()}:role/{role}"

    def default_bucket(self) -> str:
        """Return the name of the account's bucket; asks AWS who you are. It is created when a job needs it."""
        if self._default_bucket_name_override is None:
            self._default_bucket_name_override = f"sagemaker-{self.boto_region_name}-{self.account_id()}"
            if self._is_stood_in:
                client = self.s3_client
                with suppress(client.exceptions.BucketAlreadyOwnedByYou):
                    client.create_bucket(Bucket=self._default_bucket_name_override)
        return self._default_bucket_name_override

    # Data

    def upload_data(
        self,
        path: str,
        bucket: str | None = None,
        key_prefix: str = "data",
        callback: Any = None,
        extra_args: Any = None,
    ) -> str:
        """Copy a file or a folder to a bucket, and return its address, `s3://BUCKET/PREFIX`.

        Without a bucket, or with the session's own, nothing is copied while a job on hosts of your own, or `fit`, takes
        the data where it is: the address is then `file://`. Raises `InputError` for a path that does not exist.
        """
        del callback
        source = Path(path)
        if not source.exists():
            raise herringbone.InputError(f"upload_data: {path}: no such file or folder")
        if not self._has_bucket(bucket):
            if extra_args is not None:
                raise herringbone.UnsupportedError("upload_data: extra_args: nothing is uploaded here; leave it out")
            return f"file://{source.resolve()}"
        bucket, prefix = bucket or self.default_bucket(), key_prefix.strip("/")
        files = [source] if source.is_file() else sorted(found for found in source.rglob("*") if found.is_file())
        top = source.parent if source.is_file() else source
        client = self.s3_client
        for file in files:
            client.upload_file(str(file), bucket, _key(prefix, file.relative_to(top).as_posix()), ExtraArgs=extra_args)
        return f"s3://{bucket}/{_key(prefix, source.name if source.is_file() else '')}".rstrip("/")

    def _has_bucket(self, bucket: str | None) -> bool:
        """Say whether data must go to a bucket: where one stands in for AWS's, or where another one is named."""
        own = bucket is None or (_notebook.on_own_hosts(os.environ) and bucket == self._default_bucket_name_override)
        return not own or self._is_stood_in

    @property
    def _is_stood_in(self) -> bool:
        """Whether another service answers as AWS; a session that boto3 has not made may know nothing of buckets."""
        return bool(os.environ.get("AWS_ENDPOINT_URL")) and hasattr(self.boto_session, "get_available_services")

    def _default_output(self) -> str | None:
        """Return where models of jobs on this machine go that name no `output_path`; None: into the job's folder.

        As with SDK v2 that is the default bucket, where one stands in for AWS's: notebooks ask S3 for the model.
        """
        if not self._has_bucket(None):
            return None
        return f"s3://{_key(self.default_bucket(), self.default_bucket_prefix or '')}/"

    def upload_string_as_file_body(self, body: str | bytes, bucket: str, key: str, kms_key: str | None = None) -> str:
        """Write a text into an object, and return its address."""
        more = {"SSEKMSKeyId": kms_key, "ServerSideEncryption": "aws:kms"} if kms_key else {}
        self.s3_client.put_object(Body=body, Bucket=bucket, Key=key, **more)
        return f"s3://{bucket}/{key}"

    def download_data(self, path: str, bucket: str, key_prefix: str = "", extra_args: Any = None) -> list[str]:
        """Copy the objects below a prefix into a folder, and return the files."""
        client, copied = self.s3_client, []
        for key in self.list_s3_files(bucket, key_prefix):
            # One object, or the objects of a folder by their place below it.
            inside = os.path.relpath(key, key_prefix) if key != key_prefix else Path(key).name
            target = Path(path, inside)
            if not target.resolve().is_relative_to(Path(path).resolve()):
                raise herringbone.InputError(f"download_data: s3://{bucket}/{key} leads out of {path}")
            if key.endswith("/"):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, key, str(target), ExtraArgs=extra_args)
            copied.append(str(target))
        return copied

    def list_s3_files(self, bucket: str, key_prefix: str) -> list[str]:
        """Return the keys that begin with a prefix."""
        pages = self.s3_client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key_prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def read_s3_file(self, bucket: str, key_prefix: str) -> str:
        """Return the text of an object."""
        text: str = self.s3_client.get_object(Bucket=bucket, Key=key_prefix)["Body"].read().decode()
        return text

    # Jobs

    def logs_for_job(
        self, job_name: str, wait: bool = False, poll: int = 10, log_type: str = "All", timeout: float | None = None
    ) -> None:
        """Show a job's log; with `wait`, to its end. Raises `JobFailedError` after the end of one that failed."""
        del poll, log_type
        if timeout is not None:
            raise herringbone.UnsupportedError("logs_for_job: timeout: not served; wait_for_job has none, either")
        job = TrainingJob.attach(job_name, _notebook.asked(self))
        for line in job.logs(follow=wait):
            print(line.text)
        if wait:
            job.wait(logs=False)

    def wait_for_job(self, job: str, poll: int = 5) -> dict[str, Any]:
        """Wait until a job is over, and return its description. Raises `JobFailedError`."""
        del poll
        return TrainingJob.attach(job, _notebook.asked(self)).wait(logs=False).describe()

    def describe_training_job(self, job_name: str) -> dict[str, Any]:
        """Return the description of a job."""
        return TrainingJob.attach(job_name, _notebook.asked(self)).describe()

    def stop_training_job(self, job_name: str) -> None:
        """Stop a job."""
        TrainingJob.attach(job_name, _notebook.asked(self)).stop()

    def describe_tuning_job(self, job_name: str) -> dict[str, Any]:
        """Return the description of a search."""
        return HyperparameterTuner.attach(job_name, self).describe()

    def wait_for_tuning_job(self, job: str, poll: int = 5) -> dict[str, Any]:
        """Wait until a search is over, and return its description."""
        del poll
        tuner = HyperparameterTuner.attach(job, self)
        tuner.wait()
        return tuner.describe()

    def stop_tuning_job(self, name: str) -> None:
        """Stop a search."""
        herringbone.HyperparameterTuner.attach(name, _notebook.asked(self)).stop_tuning_job()


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise _absent.refusal(f"sagemaker.Session.{name}")


def _key(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def get_execution_role(sagemaker_session: Any = None, use_default: bool = False) -> str | None:
    """Return the role of a notebook's jobs: on your own hosts a stand-in; else None, which takes the caller's.

    `use_default` makes no role: there is none to make on your own hosts, and at AWS an estimator's `role` names one.
    """
    del sagemaker_session
    if _notebook.on_own_hosts(os.environ):
        return f"arn:aws:iam::{DEFAULT_ACCOUNT}:role/{_ROLE}"
    if use_default:
        raise herringbone.UnsupportedError(
            "get_execution_role: use_default: no role is created here; name one in role="
        )
    return None


__getattr__ = partial(_absent.absent, __name__)
