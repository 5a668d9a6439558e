"""`sagemaker.instance_group`."""

from __future__ import annotations

from functools import partial

from herringbone import InstanceGroup
from sagemaker import _absent

__all__ = ["InstanceGroup"]
__getattr__ = partial(_absent.absent, __name__)
