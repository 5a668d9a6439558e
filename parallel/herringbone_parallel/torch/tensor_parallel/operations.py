"""Collective operations between the ranks that share a layer, and the gradients that pass through them.

Let a layer be shared by `degree` ranks. Outside of it, every rank has the same activations and gradients. Inside of it,
each rank has its own part of the features. These functions are the ways in and out:

    function      forward                      backward                     where
    enter         the tensor as it is          sum of the ranks' gradients  before a layer split by outputs
    leave         sum of the ranks' tensors    the gradient as it is        after a layer split by inputs
    gather        the parts, put together      this rank's part             after it, if all features are needed
    take          this rank's part             the parts, put together      before it, if all features are there
    regroup       rows move between the ranks  rows move back               packed weights, such as query, key and value

Source of `enter` and `leave`: the functions f and g of Shoeybi et al., "Megatron-LM", 2019.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel.torch.tensor_parallel.packed import rows_for


class Peers:
    """The ranks that share a layer: their process group, their number, and the index of this rank among them.

    >>> Peers(group).degree    # doctest: +SKIP
    2
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.degree = dist.get_world_size(group)
        self.index = dist.get_rank(group)
        # The same ranks in the order of the group: collectives address ranks by their global numbers.
        self.ranks = dist.get_process_group_ranks(group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Peers:
        # A process group cannot be copied; the copy of a module talks to the same ranks.
        return self

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' tensors, in a tensor of its own."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def join(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the ranks' tensors, put together along `dim`; they have the same shape."""
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.degree)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts, dim)

    def part(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's part along `dim`."""
        return tensor.chunk(self.degree, dim)[self.index]

    def scatter_sum(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's part, along `dim`, of the sum of the ranks' tensors."""
        return self.part(self.sum(tensor), dim).contiguous()


def enter(tensor: torch.Tensor, peers: Peers) -> torch.Tensor:
    """Return the tensor; its gradient is the sum of the ranks' gradients."""
    result: torch.Tensor = _Enter.apply(tensor, peers)  # type: ignore[no-untyped-call]
    return result


def leave(tensor: torch.Tensor, peers: Peers) -> torch.Tensor:
    """Return the sum of the ranks' tensors; each gets the gradient of the sum."""
    result: torch.Tensor = _Leave.apply(tensor, peers)  # type: ignore[no-untyped-call]
    return result


def gather(tensor: torch.Tensor, peers: Peers, dim: int = -1) -> torch.Tensor:
    """Return the ranks' tensors, put together along `dim`; each gets its part of the gradient."""
    result: torch.Tensor = _Gather.apply(tensor, peers, dim)  # type: ignore[no-untyped-call]
    return result


def gather_mean(tensor: torch.Tensor, peers: Peers, dim: int = -1) -> torch.Tensor:
    """Return the ranks' tensors, put together along `dim`; each gets its part of the mean of the ranks' gradients."""
    result: torch.Tensor = _GatherMean.apply(tensor, peers, dim)  # type: ignore[no-untyped-call]
    return result


def take(tensor: torch.Tensor, peers: Peers, dim: int = -1) -> torch.Tensor:
    """Return this rank's part along `dim`; the gradient is that of all parts."""
    result: torch.Tensor = _Take.apply(tensor, peers, dim)  # type: ignore[no-untyped-call]
    return result


def regroup(tensor: torch.Tensor, peers: Peers, blocks: int, dim: int = 0) -> torch.Tensor:
    """Return this rank's part of each of the `blocks` blocks that are packed along `dim` of a split parameter.

    The parameter of a layer with packed query, key and value is stored in `degree` consecutive parts, as any other
    parameter is. Its user needs this rank's part of the queries, then of the keys, then of the values.
    """
    result: torch.Tensor = _Regroup.apply(tensor, peers, blocks, dim)  # type: ignore[no-untyped-call]
    return result


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers) -> torch.Tensor:
        ctx.peers = peers
        # A view, because a function must not return its argument itself.
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.sum(gradient), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers) -> torch.Tensor:  # noqa: ARG004  torch's signature
        return peers.sum(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # noqa: ARG004
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers, dim: int) -> torch.Tensor:
        ctx.peers, ctx.dim = peers, dim
        return peers.join(tensor, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.part(gradient, ctx.dim).contiguous(), None, None


class _GatherMean(_Gather):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.scatter_sum(gradient, ctx.dim) / ctx.peers.degree, None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers, dim: int) -> torch.Tensor:
        ctx.peers, ctx.dim = peers, dim
        return peers.part(tensor, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.peers.join(gradient, ctx.dim), None, None


class _Regroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, peers: Peers, blocks: int, dim: int) -> torch.Tensor:
        ctx.peers, ctx.blocks, ctx.dim = peers, blocks, dim
        rows = tensor.movedim(dim, 0)
        # By receiver: the rows of this rank that belong to it, in their order in the whole parameter.
        outgoing = rows_for(peers.index, len(rows), blocks, peers.degree)
        incoming = [rows_for(rank, len(rows), blocks, peers.degree)[peers.index] for rank in range(peers.degree)]
        order = torch.tensor([row for group in outgoing for row in group], device=tensor.device)
        received = _exchange(rows[order], peers, [len(g) for g in incoming], [len(g) for g in outgoing])
        return received.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        peers: Peers = ctx.peers
        rows = gradient.movedim(ctx.dim, 0)
        outgoing = rows_for(peers.index, len(rows), ctx.blocks, peers.degree)
        incoming = [rows_for(rank, len(rows), ctx.blocks, peers.degree)[peers.index] for rank in range(peers.degree)]
        order = torch.tensor([row for group in outgoing for row in group], device=gradient.device)
        returned = _exchange(rows, peers, [len(g) for g in outgoing], [len(g) for g in incoming])
        result = torch.empty_like(returned)
        result[order] = returned
        return result.movedim(0, ctx.dim), None, None, None


def _exchange(rows: torch.Tensor, peers: Peers, receive: list[int], send: list[int]) -> torch.Tensor:
    received = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=peers.group)
    return received
