"""Decisions on small trees whose answer is obvious, and errors for trees without an answer."""

from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Link, Value
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.problem import make_problem


def layer(path: str, size: int = 0, *children: CostNode, seconds: float = 0.0, inputs: int = 0) -> CostNode:
    identity = {int.from_bytes(path.encode(), "big"): size} if size else {}
    return CostNode(path=path, parameters=identity, seconds=seconds, input_bytes=inputs, children=children)


def tree(*children: CostNode, values: tuple[Value, ...] = (), bytes_per_second: float = 1e12) -> CostTree:
    link = Link(bytes_per_second=bytes_per_second)
    return CostTree(root=CostNode(path="", children=children), link=link, values=values)


def test_memory_weight_balances_memory_against_time():
    model = tree(layer("a", 90, seconds=1.0), layer("b", 5, seconds=1.0), layer("c", 5, seconds=2.0))
    assert decide(model, 2, memory_weight=1.0).assigned == {"a": 0, "b": 1, "c": 1}
    assert decide(model, 2, memory_weight=0.0).assigned == {"a": 0, "b": 0, "c": 1}


def test_an_expensive_transfer_justifies_imbalance():
    model = tree(
        layer("a", 1, seconds=2.0),
        layer("b", 1, seconds=2.0, inputs=1),
        layer("c", 1, seconds=2.0, inputs=50),
        layer("d", 1, seconds=2.0, inputs=50),
        bytes_per_second=100.0,
    )
    # Cut in the middle, both have 4 s of work and 1 s of copies. Cut after `a`, one has 6 s and 0.02 s, which is more.
    assert decide(model, 2, memory_weight=0.0).assigned == {"a": 0, "b": 0, "c": 1, "d": 1}
    slow = CostTree(root=model.root, link=Link(bytes_per_second=25.0))
    decision = decide(slow, 2, memory_weight=0.0)
    assert decision.assigned == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert decision.communication == pytest.approx(2 / 25)


def test_tied_modules_go_together_and_count_once():
    tied = CostNode(path="embed", parameters={1: 60}), CostNode(path="head", parameters={1: 60})
    model = tree(tied[0], layer("x", 50), layer("y", 50), layer("z", 50), tied[1])
    decision = decide(model, 2, memory_weight=1.0)
    assert decision.assigned["embed"] == decision.assigned["head"] == 0
    assert sorted(load.memory_bytes for load in decision.loads) == [100, 110]


def test_modules_without_parameters_join_the_one_before_and_containers_their_last():
    block = layer("block", 0, layer("block.fc", 10), layer("block.relu", seconds=4.0), seconds=1.0)
    problem = make_problem(tree(layer("drop", seconds=2.0), layer("first", 10), block), memory_weight=0.5)
    assert problem.members == (("first",), ("block.fc",))
    assert problem.seconds.tolist() == [2.0, 5.0]


def test_a_value_moves_once_to_each_partition_that_uses_it():
    nodes = [layer(name, 10, seconds=1.0) for name in "abcd"]
    value = Value(source="a", users=("b", "c", "d"), forward_bytes=1, backward_bytes=1)
    decision = decide(tree(*nodes, values=(value,), bytes_per_second=10.0), 2, memory_weight=0.0)
    assert decision.communication == pytest.approx(0.2)
    assert [load.communication_seconds for load in decision.loads] == pytest.approx([0.2, 0.2])


def test_partitions_are_numbered_in_call_order_and_none_is_empty():
    decision = decide(tree(*(layer(f"m{n}", 1 + n % 5) for n in range(40))), 4, memory_weight=1.0)
    assert list(dict.fromkeys(decision.assigned.values())) == [0, 1, 2, 3]
    assert len(decision.loads) == 4


def test_one_partition_holds_all():
    decision = decide(tree(layer("a", 3), layer("b", 4)), 1, memory_weight=0.8)
    assert (decision.assigned, decision.gap, decision.communication) == ({"a": 0, "b": 0}, 0.0, 0.0)


def test_without_times_memory_alone_decides():
    decision = decide(tree(layer("a", 60), layer("b", 40), layer("c", 40)), 2, memory_weight=0.2)
    assert decision.assigned == {"a": 0, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("revisit_cost", "partitions", "gap"),
    [(0.0, [0, 1, 0, 1], 0.0), (0.09, [0, 1, 0, 1], 0.0), (0.2, [0, 0, 1, 1], 0.1)],
)
def test_revisiting_a_partition_must_gain_more_than_its_cost(revisit_cost, partitions, gap):
    model = tree(layer("a", 60), layer("b", 50), layer("c", 40), layer("d", 50))
    decision = decide(model, 2, memory_weight=1.0, revisit_cost=revisit_cost)
    assert list(decision.assigned.values()) == partitions
    assert decision.gap == pytest.approx(gap), "the bound is that of all splits"


def test_tied_modules_at_both_ends_revisit_in_every_split():
    ends = CostNode(path="embed", parameters={1: 30}), CostNode(path="head", parameters={1: 30})
    decision = decide(tree(ends[0], layer("x", 30), layer("y", 30), ends[1]), 3, memory_weight=1.0, revisit_cost=1.0)
    assert (decision.bottleneck, decision.assigned["embed"]) == (pytest.approx(1 / 3), decision.assigned["head"])


def test_a_cap_may_need_a_split_out_of_order():
    model = tree(layer("a", 60), layer("b", 50), layer("c", 40), layer("d", 50))
    decision = decide(model, 2, memory_weight=1.0, memory_cap=100)
    assert decision.assigned == {"a": 0, "b": 1, "c": 0, "d": 1}


def test_an_impossible_cap_is_refused_with_the_smallest_possible():
    model = tree(layer("a", 60), layer("b", 50), layer("c", 40), layer("d", 50))
    with pytest.raises(ParallelError, match=r"cap of 99 bytes each; the smallest cap that works is 100 bytes"):
        decide(model, 2, memory_weight=0.5, memory_cap=99)


def test_a_cap_below_an_indivisible_group_names_the_group():
    tied = CostNode(path="embed", parameters={1: 60}), CostNode(path="head", parameters={1: 60, 2: 20})
    model = tree(tied[0], layer("x", 50), tied[1])
    with pytest.raises(ParallelError, match=r"modules \['embed', 'head'\], which share .*: 80 bytes, .* 70 bytes"):
        decide(model, 2, memory_weight=0.5, memory_cap=70)
    with pytest.raises(ParallelError, match="module 'x' cannot be divided: 50 bytes"):
        decide(tree(layer("x", 50)), 1, memory_weight=0.5, memory_cap=40)


def test_too_few_modules_are_named():
    with pytest.raises(ParallelError, match=r"1 separable modules .* too few for 2 partitions: \['a'\]"):
        decide(tree(layer("a", 1)), 2, memory_weight=0.5)


def test_an_inconsistent_tree_is_refused():
    with pytest.raises(ParallelError, match="two modules of the path 'a'"):
        decide(tree(layer("a", 1), layer("a", 1)), 2, memory_weight=0.5)
    stray = Value(source="a", users=("ghost",), forward_bytes=1, backward_bytes=0)
    with pytest.raises(ParallelError, match="no module 'ghost'"):
        decide(tree(layer("a", 1), layer("b", 1), values=(stray,)), 2, memory_weight=0.5)


def test_the_same_tree_gives_the_same_split():
    model = tree(*(layer(f"m{n}", 7 * n % 13 + 1, seconds=float(n % 3), inputs=n % 4) for n in range(60)))
    assert decide(model, 4, memory_weight=0.3) == decide(model, 4, memory_weight=0.3)


def test_more_groups_than_the_tables_hold_are_joined_and_spread_evenly():
    """2,500 positions would need tables of 50 MB each; neighbours are joined first."""
    decision = decide(tree(*(layer(f"m{n}", 10) for n in range(2_500))), 4, memory_weight=1.0)
    assert decision.gap < 0.005


def test_a_search_ends_at_a_gap_that_is_good_enough():
    # More groups than the exhaustive search takes, so that the certificate is a bound and the gap stays.
    model = tree(*(layer(f"l{index}", 10 + index * 37 % 11, seconds=1.0 + index * 13 % 7) for index in range(40)))
    rough, best = (decide(model, 3, memory_weight=0.5, good_enough=share) for share in (0.5, 0.0))
    assert rough.gap <= 0.5
    assert best.bottleneck <= rough.bottleneck <= rough.bound * 1.5
    assert rough.method in ("contiguous", "moves")
