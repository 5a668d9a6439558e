"""Attention layers, by AWS's names."""

from herringbone_parallel.torch.sharding.attention import FlashGroupedQueryAttention, FlashSelfAttention  # noqa: F401
