"""`sagemaker.local`."""

from __future__ import annotations

from functools import partial
from typing import Any

from herringbone import UnsupportedError
from sagemaker import _absent
from sagemaker.session import Session


class LocalSession(Session):
    """Accepted where a notebook asks for local mode: `instance_type="local"` alone decides that here.

    `config` may be set, as for `{"local": {"local_code": True}}`; code is always local to a local job.
    """

    local_mode = True

    def __init__(
        self,
        boto_session: Any = None,
        default_bucket: str | None = None,
        s3_endpoint_url: str | None = None,
        disable_local_code: bool = False,
        sagemaker_config: Any = None,
        default_bucket_prefix: str | None = None,
    ) -> None:
        if s3_endpoint_url is not None or disable_local_code:
            raise UnsupportedError(
                "LocalSession: s3_endpoint_url, disable_local_code: not served; AWS_ENDPOINT_URL_S3 names another S3"
            )
        super().__init__(
            boto_session,
            default_bucket=default_bucket,
            sagemaker_config=sagemaker_config,
            default_bucket_prefix=default_bucket_prefix,
        )


__all__ = ["LocalSession"]
__getattr__ = partial(_absent.absent, __name__)
