"""Attention layers under AWS's names, on torch's `scaled_dot_product_attention`, which picks the kernel.

Source of the names and shapes: the developer guide, "The SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from herringbone_contract.errors import ParallelError

LAYOUTS = ("b h s d", "b s h d")


class FlashSelfAttention(nn.Module):
    """Attention in which queries, keys and values have the same number of heads.

        attention = FlashSelfAttention(attention_dropout_prob=0.1)
        attention(qkv, causal=True, layout="b h s d")       # -> (batch, heads, sequence, head size)

    `qkv` is one tensor with 3 x heads, or a tuple of three. `attn_mask` is added to the scores, as ALiBi needs it.
    `triton_flash_attention` and `use_alibi` select AWS's kernels and change nothing here.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.0,
        scale: float | None = None,
        triton_flash_attention: bool = False,  # noqa: ARG002 - AWS's signature
        use_alibi: bool = False,  # noqa: ARG002
    ) -> None:
        super().__init__()
        self.attention_dropout_prob = attention_dropout_prob
        self.scale = scale

    def forward(
        self,
        qkv: Tensor | Sequence[Tensor],
        attn_mask: Tensor | None = None,
        causal: bool = False,
        cast_dtype: torch.dtype | None = None,
        layout: str = "b h s d",
    ) -> Tensor:
        q, k, v = _heads(qkv, 3, cast_dtype, layout)
        if attn_mask is not None and causal:
            # torch takes one of the two, so the triangle goes into the mask.
            later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
            attn_mask = attn_mask.to(q.dtype).masked_fill(later, float("-inf"))
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if attn_mask is None else attn_mask.to(q.dtype),
            dropout_p=self.attention_dropout_prob if self.training else 0.0,
            is_causal=causal and attn_mask is None,
            scale=self.scale,
        )


class FlashGroupedQueryAttention(nn.Module):
    """Attention in which several heads of queries share one of keys and values.

        attention = FlashGroupedQueryAttention()
        attention(q, kv, causal=True, layout="b s h d")     # -> (batch, heads, sequence, head size)

    `kv` is one tensor with 2 x heads, or a tuple of two.
    """

    def __init__(self, attention_dropout_prob: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.attention_dropout_prob = attention_dropout_prob
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        kv: Tensor | Sequence[Tensor],
        causal: bool = False,
        cast_dtype: torch.dtype | None = None,
        layout: str = "b s h d",
    ) -> Tensor:
        (queries,) = _heads((q,), 1, cast_dtype, layout)
        k, v = _heads(kv, 2, cast_dtype, layout)
        return functional.scaled_dot_product_attention(
            queries,
            k,
            v,
            dropout_p=self.attention_dropout_prob if self.training else 0.0,
            is_causal=causal,
            scale=self.scale,
            enable_gqa=queries.shape[1] != k.shape[1],
        )


def _heads(
    tensors: Tensor | Sequence[Tensor], count: int, dtype: torch.dtype | None, layout: str
) -> tuple[Tensor, ...]:
    """Return `count` tensors of the shape (batch, heads, sequence, head size)."""
    if layout not in LAYOUTS:
        raise ParallelError(f"layout is {' or '.join(map(repr, LAYOUTS))}, not {layout!r}")
    heads = layout.split().index("h")
    parts = tensors.chunk(count, heads) if isinstance(tensors, Tensor) else tuple(tensors)
    if layout == "b s h d":
        parts = tuple(part.transpose(1, 2) for part in parts)
    return tuple(part if dtype is None else part.to(dtype) for part in parts)
