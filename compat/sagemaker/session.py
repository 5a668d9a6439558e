"""`sagemaker.session`: the session of a notebook, which Herringbone needs for AWS alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import herringbone
from sagemaker import _alone


class Session:
    """Stands for the account: `Session(boto_session)`. Jobs on your own machines need none.

    >>> Session().upload_data("/tmp", key_prefix="mnist")
    'file:///tmp'
    """

    def __init__(
        self,
        boto_session: Any = None,
        sagemaker_client: Any = None,
        sagemaker_runtime_client: Any = None,
        default_bucket: str | None = None,
        default_bucket_prefix: str | None = None,
        **options: Any,
    ) -> None:
        for name, value in {
            **options,
            "sagemaker_client": sagemaker_client,
            "sagemaker_runtime_client": sagemaker_runtime_client,
        }.items():
            if value is not None:
                raise herringbone.UnsupportedError(
                    f"Session: {name}: not served; give boto_session, which makes clients"
                )
        # The names that Herringbone reads of a session of AWS's SDK.
        self._boto_session = boto_session
        self._default_bucket_name_override = default_bucket
        self.default_bucket_prefix = default_bucket_prefix

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

    def default_bucket(self) -> str:
        """Return the name of the account's bucket; asks AWS who you are. It is created when a job needs it."""
        if self._default_bucket_name_override is not None:
            return self._default_bucket_name_override
        account = self.boto_session.client("sts").get_caller_identity()["Account"]
        return f"sagemaker-{self.boto_region_name}-{account}"

    def upload_data(
        self, path: str, bucket: str | None = None, key_prefix: str = "data", extra_args: Any = None
    ) -> str:
        """Return the address of local data for a channel. Uploads nothing: `fit` does, for a job on `ml.*`.

        Raises `InputError` for a path that does not exist, and `UnsupportedError` for a bucket of your own.
        """
        del key_prefix
        if bucket is not None and bucket != self._default_bucket_name_override:
            raise herringbone.UnsupportedError(
                f"upload_data: bucket {bucket!r}: fit uploads local data to code_location; upload it yourself with"
                f" `aws s3 cp`, and give the s3:// address, or leave bucket out"
            )
        if extra_args is not None:
            raise herringbone.UnsupportedError("upload_data: extra_args: nothing is uploaded here; leave it out")
        if not Path(path).exists():
            raise herringbone.InputError(f"upload_data: {path}: no such file or folder")
        return f"file://{Path(path).resolve()}"

    def logs_for_job(self, job_name: str, wait: bool = False, poll: int = 10, log_type: str = "All") -> None:
        """Show a job's log; with `wait`, to its end."""
        del poll, log_type
        for line in herringbone.attach(job_name).logs(follow=wait):
            print(line.text)

    def wait_for_job(self, job: str, poll: int = 5) -> dict[str, Any]:
        """Wait until a job is over, and return its description."""
        del poll
        return herringbone.attach(job).wait().describe()

    def describe_training_job(self, job_name: str) -> dict[str, Any]:
        """Return the description of a job."""
        return herringbone.attach(job_name).describe()

    def stop_training_job(self, job_name: str) -> None:
        """Stop a job."""
        herringbone.attach(job_name).stop()


def get_execution_role(sagemaker_session: Any = None, use_default: bool = False) -> str | None:
    """Return None: an estimator then takes the role that the caller has assumed, and on your own machines none."""
    del sagemaker_session
    if use_default:
        raise herringbone.UnsupportedError(
            "get_execution_role: use_default: no role is created here; name one in role="
        )
    return None


__getattr__ = partial(_alone.refuse, __name__)
