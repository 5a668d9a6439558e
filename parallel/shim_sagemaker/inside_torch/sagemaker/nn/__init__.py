"""Layers, by AWS's names."""

from torch.sagemaker.nn import attn  # noqa: F401
