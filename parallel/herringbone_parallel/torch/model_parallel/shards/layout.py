"""The division of parameters over ranks: parameters lie one after another in a flat tensor, cut into equal parts.

    parameter   a          b              c
    flat        a0 a1 a2 | b0 b1 b2 b3 | c0 c1 .
    rank        0  0  0    0  1  1  1    1  2  2 ...      with equal parts of `length` elements, the last one padded

A part may begin and end inside a parameter. So parts are equal up to the padding, whatever the shapes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import nn

Named = Sequence[tuple[str, nn.Parameter]]


class Range(NamedTuple):
    """The elements of a flattened parameter that a rank has, from `start` up to `end`; empty where both are equal."""

    start: int
    end: int


class Layout:
    """The division of some parameters of one dtype and device over `size` ranks.

    >>> parameters = [("a", nn.Parameter(torch.ones(3))), ("b", nn.Parameter(torch.ones(2, 2)))]
    >>> layout = Layout(parameters, size=2)
    >>> layout.length, layout.ranges(0), layout.ranges(1)
    (4, [Range(start=0, end=3), Range(start=0, end=1)], [Range(start=3, end=3), Range(start=1, end=4)])

    `shapes` are those of the whole parameters, `length` the elements of each part.
    """

    def __init__(self, named: Named, size: int) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.size = size
        counts = [shape.numel() for shape in self.shapes]
        # The offset of each parameter in the flat tensor, and its end.
        self.offsets = [0, *accumulate(counts)]
        self.length = -(-self.offsets[-1] // size)
        self.dtype = self.parameters[0].dtype
        self.device = self.parameters[0].device

    def ranges(self, rank: int) -> list[Range]:
        """Return the part of each parameter that the rank with this index has."""
        first, last = rank * self.length, (rank + 1) * self.length
        ranges = []
        for offset, end in zip(self.offsets, self.offsets[1:], strict=False):
            start = min(max(first, offset), end) - offset
            ranges.append(Range(start, max(start, min(last, end) - offset)))
        return ranges

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return each parameter's part of a flat tensor of all elements, in the parameter's shape."""
        return [
            flat[offset : offset + shape.numel()].view(shape)
            for offset, shape in zip(self.offsets, self.shapes, strict=False)
        ]

    def pieces(self, part: torch.Tensor, rank: int) -> list[torch.Tensor]:
        """Return each parameter's elements in the part of this rank, flat; empty for a parameter that is elsewhere."""
        pieces, position = [], 0
        for start, end in self.ranges(rank):
            pieces.append(part[position : position + end - start])
            position += end - start
        return pieces


def cut_runs(named: Named, most: int) -> Sequence[Named]:
    """Cut parameters, in their order, into runs of one dtype and device with at most `most` elements each.

    >>> cut_runs([(name, nn.Parameter(torch.ones(3))) for name in "abc"], 6)  # doctest: +ELLIPSIS
    [[('a', ...), ('b', ...)], [('c', ...)]]

    A parameter is never alone in two runs, so a larger one exceeds `most`.
    """
    runs: list[list[tuple[str, nn.Parameter]]] = []
    # By kind: the run that takes the next parameter, and its elements.
    newest: dict[Any, tuple[list[tuple[str, nn.Parameter]], int]] = {}
    for name, parameter in named:
        kind = (parameter.dtype, parameter.device)
        run, filled = newest.get(kind, ([], most))
        if filled + parameter.numel() > most or not run:
            run, filled = [], 0
            runs.append(run)
        run.append((name, parameter))
        newest[kind] = (run, filled + parameter.numel())
    return runs


def part_of(value: Any, shape: torch.Size, part: Range) -> Any:
    """Return a rank's elements of a tensor of the parameter's whole shape, as a copy; any other value as it is."""
    if isinstance(value, torch.Tensor) and value.shape == shape:
        return value.detach().reshape(-1)[part.start : part.end].clone()
    return value


def join_states(layouts: Sequence[Layout], parts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each parameter's whole optimizer state, from the states of all ranks' parts by their index.

    A tensor with one element for each of a rank's elements is joined; any other value is the first rank's that has it.
    """
    joined: dict[str, dict[str, Any]] = {}
    for layout in layouts:
        by_rank = [layout.ranges(rank) for rank in range(layout.size)]
        for number, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True)):
            entries = [
                (ranges[number], part[name])
                for ranges, part in zip(by_rank, parts, strict=True)
                if name in part and ranges[number].end > ranges[number].start
            ]
            if entries:
                joined[name] = {key: _joined(key, entries, shape) for key in entries[0][1]}
    return joined


def _joined(key: str, entries: Sequence[tuple[Range, Mapping[str, Any]]], shape: torch.Size) -> Any:
    values = [(part, entry[key]) for part, entry in entries]
    first = values[0][1]
    if not all(isinstance(value, torch.Tensor) and value.shape == (part.end - part.start,) for part, value in values):
        return first
    whole = torch.zeros(shape.numel(), dtype=first.dtype, device=first.device)
    for part, value in values:
        whole[part.start : part.end] = value
    return whole.view(shape)
