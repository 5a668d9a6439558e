"""Collects a sequence's rows from the ranks that share it, and takes a rank's rows of a whole one.

Every rank of a context group computes the same loss, and gradients of parameters are averaged over the group. The
backward of `Sequence.gather` therefore sums what all ranks send back, so that the average is one process's gradient.
"""

from __future__ import annotations

import enum
from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel.torch.context_parallel.layout import Layout

# torch 2.13 renamed both and warns about the older names.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Exchange(enum.Enum):
    """The ways in which parts travel between the ranks; the values are those of AWS's `cp_comm_type`."""

    P2P = "p2p"
    ALL_GATHER = "all_gather"


class Sequence:
    """One sequence on one rank of the `group` that shares it: its layout, with the indices as tensors.

    >>> sequence.gather(sequence.rows_of(hidden, dim=1), dim=1)  # doctest: +SKIP  equals `hidden`
    """

    def __init__(self, layout: Layout, group: dist.ProcessGroup, comm: Exchange, device: torch.device) -> None:
        self.layout = layout
        self.comm = comm
        self.group = group
        self.rank = dist.get_rank(group)
        self.parts = layout.parts(self.rank)
        self.held = layout.rows_held(self.rank)
        self.rows = torch.tensor(layout.rows(self.rank), device=device)
        self.order = torch.tensor(layout.order(), device=device)

    def rows_of(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Return this rank's rows of a tensor with all positions along `dim`."""
        return whole.index_select(dim, self.rows.to(whole.device))

    def gather(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the tensor with all positions along `dim`; the ranks give their rows."""
        whole: torch.Tensor = _Gather.apply(rows, self, dim)  # type: ignore[no-untyped-call]
        return whole


class _Gather(torch.autograd.Function):
    """This rank's rows along `dim` to all rows; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sequence: Sequence, dim: int) -> torch.Tensor:
        ctx.sequence, ctx.dim = sequence, dim
        layout = sequence.layout
        rows = rows.movedim(dim, 0)
        # Ranks give equally many rows: a collective over parts of different sizes is slower, or lacking.
        part = rows.new_zeros(layout.largest, *rows.shape[1:])
        part[: rows.shape[0]] = rows
        parts = rows.new_empty(layout.ranks, *part.shape)
        if sequence.comm is Exchange.ALL_GATHER:
            _ALL_GATHER(parts.flatten(0, 1), part, group=sequence.group)
        else:
            _swap(part.expand_as(parts), parts, sequence)
        # `fully_shard` warns about a layer that returns a view.
        return parts.flatten(0, 1).index_select(0, sequence.order).movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sequence: Sequence = ctx.sequence
        layout = sequence.layout
        whole = gradients[0].movedim(ctx.dim, 0)
        filled = whole.new_zeros(layout.ranks * layout.largest, *whole.shape[1:])
        filled[sequence.order] = whole
        parts = filled.view(layout.ranks, layout.largest, *whole.shape[1:])
        if sequence.comm is Exchange.ALL_GATHER:
            part = torch.empty_like(parts[0])
            _REDUCE_SCATTER(part, filled, group=sequence.group)
        else:
            received = torch.empty_like(parts)
            _swap(parts, received, sequence)
            part = received.sum(dim=0)
        return part[: sequence.held].movedim(0, ctx.dim), None, None


def _swap(sent: torch.Tensor, received: torch.Tensor, sequence: Sequence) -> None:
    """Send `sent[i]` to rank i of the group and receive `received[i]` from it, in messages between two ranks each."""
    received[sequence.rank] = sent[sequence.rank]
    messages = []
    for step in range(1, sequence.layout.ranks):
        # Each rank has another partner at each step, as in a ring, so that no rank waits for all others' messages.
        target, source = (sequence.rank + step) % sequence.layout.ranks, (sequence.rank - step) % sequence.layout.ranks
        messages += [
            dist.P2POp(dist.isend, sent[target].contiguous(), group=sequence.group, group_peer=target),
            dist.P2POp(dist.irecv, received[source], group=sequence.group, group_peer=source),
        ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
