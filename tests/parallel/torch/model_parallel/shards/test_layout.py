"""The division of parameters into runs, parts and pieces, and the joining of states."""

from __future__ import annotations

import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.shards.group import cut_by_hosts
from herringbone_parallel.torch.model_parallel.shards.layout import Layout, Range, cut_runs, join_states, part_of


def parameters_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[tuple[str, nn.Parameter]]:
    return [(f"p{number}", nn.Parameter(torch.ones(shape, dtype=dtype))) for number, shape in enumerate(shapes)]


def test_parts_are_equal_and_hold_each_element_once() -> None:
    layout = Layout(parameters_of((3, 3), (2,), (4,)), size=4)
    assert (layout.length, layout.offsets) == (4, [0, 9, 11, 15])
    assert [layout.ranges(rank) for rank in range(4)] == [
        [Range(0, 4), Range(0, 0), Range(0, 0)],
        [Range(4, 8), Range(0, 0), Range(0, 0)],
        [Range(8, 9), Range(0, 2), Range(0, 1)],
        [Range(9, 9), Range(2, 2), Range(1, 4)],
    ]
    flat = torch.arange(16.0)
    by_rank = [layout.pieces(part, rank) for rank, part in enumerate(flat.chunk(4))]
    joined = [torch.cat(pieces) for pieces in zip(*by_rank, strict=True)]
    assert [piece.tolist() for piece in joined] == [view.flatten().tolist() for view in layout.views(flat)]


def test_runs_have_one_dtype_and_at_most_so_many_elements() -> None:
    named = [*parameters_of((3,), (4,)), *parameters_of((2,), dtype=torch.float16), *parameters_of((1,), (9,), (1,))]
    sizes = [[(p.dtype, p.numel()) for _, p in run] for run in cut_runs(named, 8)]
    full, half = torch.float32, torch.float16
    assert sizes == [[(full, 3), (full, 4), (full, 1)], [(half, 2)], [(full, 9)], [(full, 1)]]


def test_states_are_divided_and_joined() -> None:
    layout = Layout(parameters_of((2, 2), (1,)), size=2)
    momentum, step = torch.arange(4.0).view(2, 2), torch.tensor(7.0)
    parts = [
        {"p0": {"m": part_of(momentum, layout.shapes[0], layout.ranges(rank)[0]), "step": step}} for rank in (0, 1)
    ]
    assert [part["p0"]["m"].tolist() for part in parts] == [[0, 1, 2], [3]]
    joined = join_states([layout], parts)
    assert list(joined) == ["p0"], "the other parameter has no state on any rank"
    assert torch.equal(joined["p0"]["m"], momentum)
    assert joined["p0"]["step"] is step


def test_only_groups_that_fill_several_hosts_gather_in_two_stages() -> None:
    hosts = [0, 0, 2, 2, 4, 4, 6, 6]
    assert cut_by_hosts([(0, 1, 2, 3), (4, 5, 6, 7)], hosts) == (
        [(0, 2), (1, 3), (4, 6), (5, 7)],
        [(0, 1), (2, 3), (4, 5), (6, 7)],
    )
    assert cut_by_hosts([(0, 1), (2, 3)], hosts) == ([], []), "each group is on one host"
    assert cut_by_hosts([(0, 2), (1, 3)], hosts) == ([], []), "one rank on each host"
    assert cut_by_hosts([(0, 1, 2)], hosts) == ([], []), "not as many on each host"
