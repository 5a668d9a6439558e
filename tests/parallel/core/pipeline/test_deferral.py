from __future__ import annotations

import pytest

from herringbone_parallel.core.pipeline.dataflow import Cut, Node, Output, assign_ranks, cut
from herringbone_parallel.core.pipeline.deferral import Product, defer, group_size

# On rank 0: x -> hidden. On rank 1: hidden -> out -> dy -> the gradients of its weight and of hidden, which goes back
# to rank 0 and makes that one's gradient.
X, FIRST, SECOND, HIDDEN, OUT, DY, DW, DHIDDEN, DFIRST = ((number, 0) for number in range(9))
CHAIN = [
    Node(constant=True, available=True),
    Node(constant=True, available=True, captured=True),
    Node(constant=True, available=True, captured=True),
    Node(inputs=(X, FIRST), assigned=0),
    Node(inputs=(HIDDEN, SECOND), assigned=1),
    Node(inputs=(OUT,)),
    Node(inputs=(HIDDEN, DY), backward=True, backward_of=4),
    Node(inputs=(SECOND, DY), backward=True, backward_of=4),
    Node(inputs=(X, DHIDDEN), backward=True, backward_of=3),
]
OF_SECOND = {DW: Product(frozenset({6}), (HIDDEN, DY))}


def cut_chain(nodes: list[Node], *more: Output) -> Cut:
    return cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [DFIRST] if rank == 0 else [DW, *more])


@pytest.mark.parametrize("group", [1, 2])
def test_a_weights_gradient_leaves_its_segment_and_its_inputs_are_kept(group: int) -> None:
    result = cut_chain(CHAIN)
    forward, backward = defer(CHAIN, result.segments[1], [DHIDDEN], OF_SECOND, group=group)
    assert (forward.deferred, backward.deferred) == ({}, OF_SECOND)
    assert forward.segment.gives == [DY]
    assert (backward.segment.nodes, backward.segment.gives) == ([7], [DHIDDEN])
    # The activation arrived as a message for the forward; the product takes it from the kept values.
    assert backward.kept == [HIDDEN, DY]
    assert HIDDEN not in backward.segment.takes
    assert result.segments[1][1].nodes == [6, 7], "the cut itself stays as it was"


def test_a_single_product_is_deferred_only_if_another_rank_waits_for_its_segment() -> None:
    result = cut_chain(CHAIN)
    products = {DFIRST: Product(frozenset({8}), (X, DHIDDEN))}
    assert [one.deferred for one in defer(CHAIN, result.segments[0], [HIDDEN], products, group=1)] == [{}, {}]
    joined = defer(CHAIN, result.segments[0], [HIDDEN], products, group=4)
    # The backward only receives the gradient of the value that it sent.
    assert [one.segment.nodes for one in joined] == [[3], []]
    assert joined[1].kept == [X, DHIDDEN]
    assert joined[1].segment.receives == result.segments[0][1].receives


@pytest.mark.parametrize(
    ("more", "results"),
    [
        (Node(inputs=(DW,), backward=True), [(9, 0)]),
        (Node(inputs=(DHIDDEN,), waits=(6,), backward=True), [(9, 0)]),
    ],
    ids=["computes with it", "waits for it"],
)
def test_a_gradient_with_another_user_is_not_deferred(more: Node, results: list[Output]) -> None:
    nodes = [*CHAIN, more]
    result = cut_chain(nodes, *results)
    assert not any(one.deferred for one in defer(nodes, result.segments[1], [DHIDDEN], OF_SECOND))


def test_a_gradient_that_travels_is_not_deferred() -> None:
    result = cut_chain(CHAIN)
    assert not any(one.deferred for one in defer(CHAIN, result.segments[1], [DHIDDEN, DW], OF_SECOND))


def test_a_gradient_whose_parts_are_results_is_not_deferred() -> None:
    nodes = [*CHAIN, Node(inputs=(DW,), backward=True)]
    products = {(9, 0): Product(frozenset({6, 9}), (HIDDEN, DY))}
    alone = cut_chain(nodes, (9, 0))
    assert not any(one.deferred for one in defer(nodes, alone.segments[1], [DHIDDEN], products))
    without = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [DFIRST] if rank == 0 else [(9, 0)])
    assert [one.deferred for one in defer(nodes, without.segments[1], [DHIDDEN], products)] == [{}, products]


def test_a_product_of_a_captured_value_is_not_deferred() -> None:
    products = {DW: Product(frozenset({6}), (SECOND, DY))}
    result = cut_chain(CHAIN)
    assert not any(one.deferred for one in defer(CHAIN, result.segments[1], [DHIDDEN], products))


@pytest.mark.parametrize(
    ("kept", "sums", "microbatches", "size"),
    [(512, 4096, 8, 8), (512, 4096, 4, 4), (2048, 4096, 8, 2), (1500, 4096, 8, 2), (8192, 4096, 8, 1), (0, 0, 8, 1)],
)
def test_a_group_keeps_no_more_bytes_than_the_sums(kept: int, sums: int, microbatches: int, size: int) -> None:
    assert group_size(kept, sums, microbatches) == size
