from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value, parse, to_text, tree_of

TREE = CostTree(
    root=CostNode(
        path="",
        seconds=0.5,
        children=(
            CostNode(path="embed", parameters={7: 400}, activation_bytes=8, seconds=1.5, input_bytes=2),
            CostNode(path="body", children=(CostNode(path="body.0", parameters={9: 10}),)),
            CostNode(path="head", parameters={7: 400}),
        ),
    ),
    link=Link(seconds=1e-5, bytes_per_second=1e9),
    values=(Value(source="embed", users=("body.0", "head"), forward_bytes=8, backward_bytes=8),),
)


def test_json_round_trip():
    assert parse(to_text(TREE)) == TREE


def test_a_thousand_modules_round_trip():
    nodes = tuple(CostNode(path=f"m{index}", parameters={index: 1}) for index in range(1_000))
    tree = CostTree(root=CostNode(path="", children=nodes), link=Link(bytes_per_second=1.0))
    assert parse(to_text(tree)) == tree


def test_the_walk_is_in_call_order_parents_first():
    assert [node.path for node in TREE.root.walk()] == ["", "embed", "body", "body.0", "head"]


def test_each_direction_of_a_transfer_pays_the_fixed_time():
    link = Link(seconds=1.0, bytes_per_second=10.0)
    assert link.transfer_seconds(20, 30) == 7.0
    assert link.transfer_seconds(20, 0) == 3.0
    assert link.transfer_seconds(0, 0) == 0.0


@pytest.mark.parametrize("text", ["", "[]", '{"root": {"path": "", "seconds": -1}, "link": {"bytes_per_second": 1}}'])
def test_invalid_text_is_refused(text):
    with pytest.raises(ParallelError, match="this is not a cost tree"):
        parse(text)


def _paths(order: dict[str, int]) -> list[str]:
    paths = ("", "head", "blocks", "blocks.0", "blocks.1", "idle", "embed")
    return [node.path for node in tree_of({path: CostNode(path=path) for path in paths}, order).walk()]


def test_children_are_in_call_order_and_a_container_has_the_place_of_its_first_call() -> None:
    called = {"": 0, "embed": 1, "blocks.1": 2, "blocks.0": 3, "head": 4}
    assert _paths(called) == ["", "embed", "blocks", "blocks.1", "blocks.0", "head", "idle"]


def test_without_calls_children_are_in_the_order_of_their_definition() -> None:
    assert _paths({}) == ["", "head", "blocks", "blocks.0", "blocks.1", "idle", "embed"]
