"""Mixtures of experts, which are not available: the first use says what to do instead."""

from torch.sagemaker.moe.moe_config import MoEConfig  # noqa: F401
