"""Helpers that AWS's scripts import."""

from torch.sagemaker.utils import module_utils, process_group_utils, utils  # noqa: F401
