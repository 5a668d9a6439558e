"""The borders of a shared region: all batches of the tensor group come together, and every rank gets its own back.

Without `prescaled_batch` the ranks of a tensor group have different batches. A region, such as a transformer layer,
computes on all of them, each rank with its part of the parameters:

    batch of rank 0 --+                      +--> result of rank 0
                      +-- join -- region --- +
    batch of rank 1 --+                      +--> result of rank 1

The loss of a step is the mean over the ranks' losses. So gradients are divided by the number of ranks as they enter the
region's backward, and multiplied by it as they leave: inside, gradients of parameters are the mean over the batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, replace_leaves
from herringbone_parallel.torch.tensor_parallel.layers import Running, become
from herringbone_parallel.torch.tensor_parallel.operations import Peers

# Arguments of torch's layers for pairs of positions; with two dimensions they have no batch.
_MASKS = frozenset({"attn_mask", "src_mask", "tgt_mask", "memory_mask", "mask"})


def put_border(module: nn.Module, peers: Peers) -> None:
    """Let the module's forward run on the batches of all peers."""
    batch_dim = 1 if _batch_second(module) else 0

    def forward(module: nn.Module, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        size = _batch_size((args, kwargs), batch_dim, module)
        dims = _dims_of_masks(original, args, kwargs)

        def bring(leaf: Any) -> Any:
            dim = dims.get(id(leaf), batch_dim)
            if dim is None or not _has_batch(leaf, dim, size):
                return leaf
            return _Join.apply(leaf, peers, dim)  # type: ignore[no-untyped-call]

        def take_back(leaf: Any) -> Any:
            if not _has_batch(leaf, batch_dim, size * peers.degree):
                return leaf
            return _Part.apply(leaf, peers, batch_dim)  # type: ignore[no-untyped-call]

        args, kwargs = replace_leaves(args, bring), replace_leaves(kwargs, bring)
        return replace_leaves(original(*args, **kwargs), take_back)

    become(module, {}, Running(), forward)


def _batch_second(module: nn.Module) -> bool:
    attention = next((inner for inner in module.modules() if isinstance(inner, nn.MultiheadAttention)), None)
    return attention is not None and not attention.batch_first


def _dims_of_masks(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[int, int | None]:
    """Return the batch dimension of masks of torch's layers, by identity; None for those without a batch."""
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        named = kwargs
    masks = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    padding = {id(value): 0 for name, value in masks.items() if name.endswith("key_padding_mask")}
    # One for pairs of positions may have as many rows as there are sequences in the batch.
    pairs = {id(value): None for name, value in masks.items() if name in _MASKS and value.dim() == 2}
    return {**padding, **pairs}


def _batch_size(arguments: Any, dim: int, module: nn.Module) -> int:
    for leaf in leaves_of(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > dim:
            return leaf.shape[dim]
    raise ParallelError(
        f"a {type(module).__name__} that the ranks of a tensor group share was called without a tensor with a batch:"
        " call smp.set_tensor_parallelism on modules that get the batch, or set `prescaled_batch`"
    )


def _has_batch(leaf: Any, dim: int, size: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == size


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers, dim: int) -> torch.Tensor:
        ctx.peers, ctx.dim = peers, dim
        if tensor.dtype == torch.bool:
            return peers.join(tensor.to(torch.uint8), dim).to(torch.bool)
        return peers.join(tensor, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.part(gradient, ctx.dim) * ctx.peers.degree, None, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers, dim: int) -> torch.Tensor:
        ctx.peers, ctx.dim = peers, dim
        return peers.part(tensor, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.join(gradient, ctx.dim) / ctx.peers.degree, None, None
