"""`sagemaker.local`."""

from __future__ import annotations

from functools import partial
from typing import Any

from sagemaker import _absent
from sagemaker.session import Session


class LocalSession(Session):
    """Accepted where a notebook asks for local mode: `instance_type="local"` alone decides that here.

    `config` may be set, as for `{"local": {"local_code": True}}`; code is always local to a local job.
    """

    config: dict[str, Any] | None = None


__all__ = ["LocalSession"]
__getattr__ = partial(_absent.absent, __name__)
