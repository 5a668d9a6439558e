"""AWS's import path of `LlamaFlashAttention`, which is not available."""

from herringbone_parallel.torch.sharding.unavailable import LlamaFlashAttention  # noqa: F401
