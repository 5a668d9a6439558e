"""The pure choices of `shard`: its units, the dimension of a shard, the ranks of an axis, and the flush warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.torch.sharding.cache_flushes import CacheFlushes
from herringbone_parallel.torch.sharding.mesh import PARAMETER_AXES, SEQUENCE_AXES, open_mesh, ranks_of
from herringbone_parallel.torch.sharding.placement import shard_dimension
from herringbone_parallel.torch.sharding.state import check_torch
from herringbone_parallel.torch.sharding.units import units


class Layer(nn.Module):
    """A layer that has a list of its own, as T5's have."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[1](self.parts[0](x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(2, 4))


def test_the_units_are_the_members_of_the_outermost_lists_that_have_parameters() -> None:
    assert list(units(Model())) == ["encoder.layers.0", "encoder.layers.1", "head.1"]


def test_a_list_of_lists_has_units_inside() -> None:
    assert list(units(nn.ModuleList([nn.ModuleList([nn.Linear(1, 1)])]))) == ["0.0"]


class Pair(nn.ModuleDict):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self["b"](self["a"](x))


def test_a_container_in_a_list_has_units_inside_unless_it_has_a_forward() -> None:
    parts = {"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)}
    without = nn.Module()
    without.a = nn.Linear(1, 1)
    model = nn.ModuleList([nn.ModuleDict(parts), nn.ModuleList([nn.ModuleDict({"c": without})]), Pair()])
    model[2].a, model[2].b = nn.Linear(1, 1), nn.Linear(1, 1)
    assert list(units(model)) == ["0.a", "0.b", "1.0.c.a", "2"]
    without.forward = without.a.forward
    assert list(units(model)) == ["0.a", "0.b", "1.0.c", "2"]
    assert list(units(nn.ModuleDict(parts))) == []


def test_a_script_names_the_classes() -> None:
    assert list(units(Model(), [nn.Embedding])) == ["embedding"]
    with pytest.raises(ParallelError, match="no module of the classes to shard one by one: Bilinear"):
        units(Model(), [nn.Bilinear])


def test_a_unit_that_shares_a_parameter_is_left_to_the_root() -> None:
    model = Model()
    model.head[1].weight = model.embedding.weight
    assert list(units(model)) == ["encoder.layers.0", "encoder.layers.1"]
    inside = Layer()
    inside.parts[0].weight = inside.parts[1].weight
    assert list(units(nn.ModuleList([inside]))) == ["0"]


@pytest.mark.parametrize(
    ("shape", "allow_empty", "dimension"),
    [
        ((8, 3), False, 0),
        ((5, 3), False, 0),
        ((2, 8), False, 1),
        ((1, 1, 8), False, 2),
        ((2, 6), False, 0),
        ((2,), False, 0),
        ((), False, 0),
        ((2, 8), True, 0),
        ((0, 8), False, 0),
        ((2, 8, 0), False, 0),
    ],
)
def test_a_parameter_is_split_where_every_rank_gets_a_part(
    shape: tuple[int, ...], allow_empty: bool, dimension: int
) -> None:
    assert shard_dimension(shape, 4, allow_empty=allow_empty) == dimension


def test_the_axes_of_parameters_and_of_sequences_hold_the_same_ranks_in_the_same_order() -> None:
    grid = Grid(Mesh(replicate=2, shard=1, context=2, tensor=2))
    assert ranks_of(grid, PARAMETER_AXES) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert ranks_of(grid, SEQUENCE_AXES) == [[[[0, 1], [2, 3]]], [[[4, 5], [6, 7]]]]


def test_a_pipeline_belongs_to_version_1() -> None:
    with pytest.raises(ParallelError, match="version 2 has no pipeline, and the mesh has 2 partitions"):
        open_mesh(Mesh(pipeline=2), 0, "cpu")


@pytest.mark.parametrize("version", ["2.2.2", "2.5.1+cpu", "1.13.1"])
def test_an_old_torch_is_refused_by_name(version: str) -> None:
    with pytest.raises(ParallelError, match=rf"needs torch 2.6 or newer, and this rank has torch {version[:3]}"):
        check_torch(version)
    check_torch("2.6.0a0+git123")


def test_a_flush_of_the_cache_is_reported_once_for_the_step_that_has_it() -> None:
    counts = iter([1, 1, 3, 3])
    flushes = CacheFlushes(lambda: next(counts))
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    flushes.watch()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                parameter.sum().backward()
                optimizer.step()
    finally:
        flushes.close()
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        "the memory manager flushed its cache 2 times in step 2"
    ]
    optimizer.step()
