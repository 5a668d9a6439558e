"""The function behind `nn.MultiheadAttention`, with masks of the whole sequence, which torch's own refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as torch's own documentation

from herringbone_contract.errors import ParallelError

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_UNSERVED = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")


def multihead(attend: Callable[..., torch.Tensor], args: Any, kwargs: Any) -> tuple[torch.Tensor, None]:
    """Compute `F.multi_head_attention_forward(*args, **kwargs)` by `attend`, which takes what torch's kernel takes.

    Returns no weights of attention: no rank has those of the whole sequence. Raises `ParallelError` for options that
    add positions to keys and values.
    """
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    options = given.arguments
    for name in _UNSERVED:
        if options[name] is not None and options[name] is not False:
            raise ParallelError(f"context parallelism has no {name} of nn.MultiheadAttention: leave it out")
    query, heads = options["query"], options["num_heads"]
    # [length, batch, features]; without a batch, one is made.
    batched = query.dim() == 3
    inputs = [options[name] if batched else options[name].unsqueeze(1) for name in ("query", "key", "value")]
    projected = [
        F.linear(tensor, weight, bias).view(*tensor.shape[:2], heads, -1).permute(1, 2, 0, 3)
        for tensor, weight, bias in zip(inputs, _weights(options), _biases(options), strict=True)
    ]
    mask, causal = _mask(options, projected[0])
    dropout = options["dropout_p"] if options["training"] else 0.0
    attended = attend(*projected, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    output = F.linear(attended.permute(2, 0, 1, 3).flatten(2), options["out_proj_weight"], options["out_proj_bias"])
    return output if batched else output.squeeze(1), None


def _weights(options: dict[str, Any]) -> Any:
    if options["use_separate_proj_weight"]:
        return [options[f"{name}_proj_weight"] for name in "qkv"]
    return options["in_proj_weight"].chunk(3)


def _biases(options: dict[str, Any]) -> Any:
    return [None] * 3 if options["in_proj_bias"] is None else options["in_proj_bias"].chunk(3)


def _mask(options: dict[str, Any], query: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """Return both masks as one to add, [batch, heads or 1, queries or 1, keys], and whether it is the causal one."""
    padding = _additive(options["key_padding_mask"], query.dtype)
    if options["is_causal"] and padding is None:
        # The mask repeats the hint, and the kernel needs none.
        return None, True
    mask = _additive(options["attn_mask"], query.dtype)
    if mask is not None and mask.dim() == 3:
        # One for each sequence and head, or one for all.
        mask = mask.view(-1, query.shape[1], *mask.shape[-2:]) if mask.shape[0] > 1 else mask
    if padding is not None:
        padding = padding.view(-1, 1, 1, padding.shape[-1])
        mask = padding if mask is None else mask + padding
    return mask, False


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a mask, where True hides a position, as numbers to add."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
