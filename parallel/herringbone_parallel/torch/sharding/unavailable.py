"""Names of AWS's library that Herringbone does not have: an import works, and the first use says what to do instead."""

from __future__ import annotations

from typing import Any

from herringbone_contract.errors import ParallelError


class MoEConfig:
    """AWS's settings of a mixture of experts. Raises `ParallelError`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ParallelError(
            "not available in this release: torch.sagemaker.moe.MoEConfig. Shard the experts with hybrid_shard_degree,"
            " without expert_parallel_degree and MoEConfig. AWS's own images run it on ml.*"
        )


class LlamaFlashAttention:
    """AWS's attention layer for Llama. Raises `ParallelError`."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ParallelError(
            "not available in this release: torch.sagemaker.nn.huggingface.llama_flashattn.LlamaFlashAttention. Make"
            " the model with attn_implementation='sdpa', which picks torch's flash kernel"
        )
