"""Checkpoints on any mesh."""

from torch.sagemaker.distributed import checkpoint  # noqa: F401
