"""Collects a sequence's rows from the ranks that share it, and takes a rank's rows of a whole one.

Every rank of a context group computes the same loss, and gradients of parameters are averaged over the group. The
backward of `Sequence.gather` therefore sums what all ranks send back, so that the average is one process's gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from herringbone_parallel.torch.context_parallel.layout import Layout

# torch 2.13 renamed both and warns about the older names.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Sequence:
    """One sequence on one rank of the `group` that shares it: its layout, with the indices as tensors.

    >>> sequence.gather(sequence.rows_of(hidden, dim=1), dim=1)  # doctest: +SKIP  equals `hidden`
    """

    def __init__(self, layout: Layout, group: dist.ProcessGroup, device: torch.device) -> None:
        self.layout = layout
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
        gathered: torch.Tensor = _Gather.apply(rows.movedim(dim, 0), self)
        return gathered.movedim(0, dim)


class _Gather(torch.autograd.Function):
    """Rows of this rank [held, ...] to all rows [length, ...]; gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sequence: Sequence) -> torch.Tensor:
        ctx.sequence = sequence
        layout = sequence.layout
        # Ranks give equally many rows: a collective over parts of different sizes is slower, or lacking.
        part = rows.new_zeros(layout.largest, *rows.shape[1:])
        part[: rows.shape[0]] = rows
        parts = rows.new_empty(layout.ranks * layout.largest, *rows.shape[1:])
        _ALL_GATHER(parts, part, group=sequence.group)
        return parts.index_select(0, sequence.order)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        sequence: Sequence = ctx.sequence
        layout = sequence.layout
        (whole,) = gradients
        parts = whole.new_zeros(layout.ranks * layout.largest, *whole.shape[1:])
        parts[sequence.order] = whole
        part = whole.new_empty(layout.largest, *whole.shape[1:])
        _REDUCE_SCATTER(part, parts, group=sequence.group)
        return part[: sequence.held], None
