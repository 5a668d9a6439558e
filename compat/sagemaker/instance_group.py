"""`sagemaker.instance_group`."""

from __future__ import annotations

from functools import partial

from herringbone import InstanceGroup
from sagemaker import _alone

__all__ = ["InstanceGroup"]
__getattr__ = partial(_alone.refuse, __name__)
