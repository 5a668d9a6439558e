"""The forward of `torch.nn.MultiheadAttention` on one rank's heads. torch's own has the number of features built in."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own abbreviation

from herringbone_parallel.torch.tensor_parallel.operations import Peers, enter, gather, leave


def attend(
    attention: nn.MultiheadAttention,
    peers: Peers,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    masks: tuple[torch.Tensor | None, torch.Tensor | None],
    weights: str | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `attention(*inputs)` returns, computed by all peers, each with its heads.

    `inputs` are query, key and value, `masks` are `key_padding_mask` and `attn_mask`, in the layouts of torch.
    `weights` is None, "mean" or "heads": the attention weights that the caller wants.
    """
    query, key, value = inputs
    batched = query.dim() == 3
    if not batched:
        query, key, value = (tensor.unsqueeze(0) for tensor in inputs)
    elif not attention.batch_first:
        query, key, value = (tensor.transpose(0, 1) for tensor in inputs)
    heads = attention.num_heads // peers.degree
    projected = _project(attention, peers, (query, key, value), same=inputs[0] is inputs[1] is inputs[2])
    # [batch, heads, length, features]
    q, k, v = (part.view(*part.shape[:-1], heads, -1).transpose(1, 2) for part in projected)
    mask = _mask(masks, q, peers)
    dropout = attention.dropout if attention.training else 0.0
    shares: torch.Tensor | None = None
    if weights is None:
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    else:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        shares = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
        context = shares @ v
        shares = gather(shares, peers, 1) if weights == "heads" else leave(shares.sum(1), peers) / attention.num_heads
    output = attention.out_proj(context.transpose(1, 2).flatten(2))
    if not batched:
        return output.squeeze(0), None if shares is None else shares.squeeze(0)
    return output if attention.batch_first else output.transpose(0, 1), shares


def _project(
    attention: nn.MultiheadAttention, peers: Peers, inputs: tuple[torch.Tensor, ...], *, same: bool
) -> list[torch.Tensor]:
    """Return this rank's features of query, key and value."""
    bias = attention.in_proj_bias
    if attention._qkv_same_embed_dim and same:
        packed = F.linear(enter(inputs[0], peers), attention.in_proj_weight, bias)
        return list(packed.chunk(3, -1))
    if attention._qkv_same_embed_dim:
        matrices = list(attention.in_proj_weight.chunk(3))
    else:
        matrices = [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
    biases = [None] * 3 if bias is None else list(bias.chunk(3))
    return [F.linear(enter(x, peers), w, b) for x, w, b in zip(inputs, matrices, biases, strict=True)]


def _mask(
    masks: tuple[torch.Tensor | None, torch.Tensor | None], query: torch.Tensor, peers: Peers
) -> torch.Tensor | None:
    """Return both masks as one that is added to the scores, [batch, heads or 1, queries or 1, keys]."""
    padding, mask = masks
    total: torch.Tensor | None = None
    batch, heads = query.shape[:2]
    if mask is not None:
        total = _added(mask, query)
        if total.dim() == 3:
            # One mask for each sequence and head, of which this rank takes those of its heads.
            total = peers.part(total.view(batch, heads * peers.degree, *total.shape[1:]), 1)
    if padding is not None:
        padded = _added(padding, query).view(batch, 1, 1, -1)
        total = padded if total is None else total + padded
    return total


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))
