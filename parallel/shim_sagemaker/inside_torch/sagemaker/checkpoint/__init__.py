"""Helpers of AWS's scripts for folders of checkpoints."""

from torch.sagemaker.checkpoint import utils  # noqa: F401
