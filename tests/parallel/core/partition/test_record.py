from __future__ import annotations

import json

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.partition_file import parse, to_text
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.record import record

TREE = CostTree(
    root=CostNode(
        path="",
        children=tuple(CostNode(path=name, parameters={ord(name): 10}, seconds=1.0, input_bytes=5) for name in "abcd"),
    ),
    link=Link(bytes_per_second=100.0),
)
PATHS = ["", "a", "b", "c", "d"]


@pytest.fixture
def file():
    return record(TREE, decide(TREE, 2, memory_weight=0.2, memory_cap=30))


def test_text_round_trip(file):
    assert parse(to_text(file)) == file


def test_a_file_holds_the_decision(file):
    decision = decide(TREE, 2, memory_weight=0.2, memory_cap=30)
    assert file.assigned == decision.assigned == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert (file.bottleneck, file.bound, file.partitions) == (decision.bottleneck, decision.bound, 2)
    assert file.gap == pytest.approx(decision.gap)
    assert [module.path for module in file.modules] == PATHS


def test_a_file_fits_its_own_model(file):
    file.check(PATHS, 2)


def test_the_error_names_the_modules_that_differ(file):
    with pytest.raises(ParallelError, match=r"another model\. The model lacks 'c', 'd'\. The file lacks 'e'\."):
        file.check(["", "a", "b", "e"], 2)
    with pytest.raises(ParallelError, match="The file lacks 'x0', 'x1', 'x2' and 7 more"):
        file.check([*PATHS, *(f"x{n}" for n in range(10))], 2)


def test_another_number_of_partitions_is_refused(file):
    with pytest.raises(ParallelError, match="has 2 partitions, this job 4"):
        file.check(PATHS, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "format 9; this release reads 1"),
        ({"partitions": 3}, "contradicts itself: 3 partitions, costs of 2"),
        ({"partitions": 0}, "not a partition file: Expected `int` >= 1"),
        ({"surprise": 1}, "not a partition file: Object contains unknown field `surprise`"),
    ],
)
def test_a_damaged_file_is_refused(file, change, message):
    with pytest.raises(ParallelError, match=message):
        parse(json.dumps({**json.loads(to_text(file)), **change}))


@pytest.mark.parametrize("text", ["", "{", "[1]", b"\xff\xfe"])
def test_invalid_text_is_refused(text):
    with pytest.raises(ParallelError, match="this is not a partition file"):
        parse(text)
