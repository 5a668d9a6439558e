from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from herringbone_parallel.core.pipeline.dataflow import EVERYWHERE, Cut, Edge, Node, assign_ranks, cut

# x -> first (rank 0) -> second (rank 1) -> loss -> backward of second -> backward of first, with the weights of both.
CHAIN = [
    Node(constant=True, available=True),
    Node(constant=True, available=True, captured=True),
    Node(constant=True, available=True, captured=True),
    Node(inputs=((1, 0),), state_rank=0),
    Node(inputs=((2, 0),), state_rank=1),
    Node(inputs=((0, 0), (3, 0)), assigned=0),
    Node(inputs=((5, 0), (4, 0)), assigned=1),
    Node(inputs=((6, 0),)),
    Node(inputs=((7, 0), (5, 0)), backward=True, backward_of=6),
    Node(inputs=((7, 0), (4, 0)), backward=True, backward_of=6),
    Node(inputs=((9, 0), (0, 0)), backward=True, backward_of=5),
]


def test_unassigned_nodes_run_where_their_newest_input_is() -> None:
    assert assign_ranks(CHAIN, default=0) == [EVERYWHERE] * 3 + [0, 1, 0, 1, 1, 1, 1, 0]


def test_an_effect_without_inputs_runs_on_the_default_rank() -> None:
    assert assign_ranks([Node(effect=True), Node()], default=1) == [1, EVERYWHERE]


def test_a_chain_is_one_forward_and_one_backward_segment_on_each_rank() -> None:
    result = cut(CHAIN, assign_ranks(CHAIN, default=0), 2, lambda rank: [(7, 0), (10, 0) if rank == 0 else (8, 0)])
    assert result.edges == (Edge((5, 0), 0, 1), Edge((7, 0), 1, 0), Edge((9, 0), 1, 0))
    first, second = result.segments
    assert [(s.phase, [n for n in s.nodes if n > 2], s.receives, s.sends) for s in first] == [
        ("forward", [3, 5], [], [0]),
        ("backward", [10], [2], []),
    ]
    assert [(s.phase, [n for n in s.nodes if n > 2], s.receives, s.sends) for s in second] == [
        ("forward", [4, 6, 7], [0], [1]),
        ("backward", [8, 9], [], [2]),
    ]
    # The loss is computed on rank 1, and rank 0 gets it as a result.
    assert result.arriving(0, [(7, 0), (10, 0)]) == {(7, 0): 1}


def test_a_backward_that_follows_at_once_is_one_segment_with_its_forward() -> None:
    result = cut(
        CHAIN,
        assign_ranks(CHAIN, default=0),
        2,
        lambda rank: [(7, 0), (10, 0) if rank == 0 else (8, 0)],
        backward_at_once=True,
    )
    first, second = result.segments
    # The first rank waits for the second one in between, and the loss is only returned there.
    assert [(s.phase, s.receives, s.sends) for s in first] == [("forward", [], [0]), ("backward", [2], [])]
    assert [(s.phase, [n for n in s.nodes if n > 2], s.receives, s.sends) for s in second] == [
        ("forward", [4, 6, 7, 8, 9], [0], [1, 2])
    ]


def test_unneeded_nodes_are_left_out_unless_they_have_an_effect() -> None:
    nodes = [
        Node(available=True, constant=True),
        Node(inputs=((0, 0),), assigned=0),
        Node(inputs=((0, 0),), assigned=1, effect=True),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [])
    assert [[segment.nodes for segment in segments] for segments in result.segments] == [[], [[2]]]


def test_each_visit_of_a_rank_is_a_segment() -> None:
    nodes = [
        Node(available=True, constant=True),
        *(Node(inputs=((before, 0),), assigned=before % 2) for before in range(4)),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(4, 0)])
    assert [[segment.nodes for segment in segments] for segments in result.segments] == [[[1], [3]], [[2], [4]]]
    assert [[segment.receives for segment in segments] for segments in result.segments] == [[[], [1]], [[0], [2]]]


def test_a_segment_that_waits_for_nothing_joins_the_one_before_unless_a_rank_awaits_that() -> None:
    # Gradients of weights that depend on no argument: one for rank 0's own weight, one of what rank 1 sends.
    nodes = [
        Node(available=True, constant=True),
        Node(inputs=((0, 0),), assigned=0),
        Node(inputs=((1, 0),), assigned=1, backward=True),
        Node(inputs=((2, 0),), assigned=0, backward=True),
        Node(assigned=0, backward=True),
        Node(assigned=1, backward=True),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(3, 0), (4, 0)] if rank == 0 else [(5, 0)])
    shapes = [[(segment.phase, segment.nodes) for segment in segments] for segments in result.segments]
    assert shapes[0] == [("forward", [1]), ("backward", [3, 4])]
    # Rank 0 waits for node 2, so node 5 does not join its segment.
    assert shapes[1] == [("backward", [2]), ("backward", [5])]


def test_a_value_travels_once_to_a_rank_however_often_it_is_used_there() -> None:
    nodes = [
        Node(available=True, constant=True),
        Node(inputs=((0, 0),), assigned=0),
        Node(inputs=((1, 0),), assigned=1),
        Node(inputs=((1, 0), (2, 0)), assigned=1),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(3, 0)] if rank else [])
    assert result.edges == (Edge((1, 0), 0, 1),)


def test_an_independent_branch_does_not_wait_for_another() -> None:
    nodes = [
        Node(available=True, constant=True),
        Node(inputs=((0, 0),), assigned=0),
        Node(inputs=((0, 0),), assigned=1),
        Node(inputs=((1, 0), (2, 0)), assigned=1),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(3, 0)] if rank else [])
    assert [segment.nodes for segment in result.segments[1]] == [[2], [3]]


def test_state_is_read_on_its_rank_and_shared_state_changes_on_all() -> None:
    nodes = [
        Node(available=True, constant=True, captured=True),
        Node(available=True, constant=True),
        Node(inputs=((1, 0),), assigned=0),
        Node(inputs=((0, 0), (2, 0)), state_rank=EVERYWHERE, effect=True),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [])
    assert result.edges == (Edge((2, 0), 0, 1),)
    assert [[segment.nodes for segment in segments] for segments in result.segments] == [[[2, 3]], [[3]]]


def test_a_value_for_forward_and_backward_is_computed_in_the_forward() -> None:
    # Both stages have the same number; the backward must not count as the first.
    nodes = [
        Node(available=True, constant=True),
        Node(assigned=0),
        Node(inputs=((0, 0), (1, 0)), assigned=0),
        Node(inputs=((0, 0), (1, 0)), assigned=0, backward=True),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 1, lambda rank: [(2, 0), (3, 0)])
    assert [(segment.phase, segment.nodes) for segment in result.segments[0]] == [
        ("forward", [1, 2]),
        ("backward", [3]),
    ]


def test_ranks_that_need_each_others_state_do_not_wait_for_each_other() -> None:
    nodes = [
        Node(available=True, constant=True),
        Node(available=True, constant=True, captured=True),
        Node(inputs=((1, 0),), state_rank=0),
        Node(inputs=((1, 0),), state_rank=1),
        Node(inputs=((0, 0), (3, 0)), assigned=0),
        Node(inputs=((0, 0), (2, 0)), assigned=1),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(4, 0), (5, 0)])
    assert [[segment.nodes for segment in segments] for segments in result.segments] == [[[2], [4]], [[3], [5]]]
    assert _run(result) == [2, 2]


def test_state_that_changes_twice_belongs_to_one_microbatch_at_a_time() -> None:
    nodes = [
        Node(available=True, constant=True),
        Node(available=True, constant=True, captured=True),
        Node(inputs=((0, 0),), assigned=0),
        Node(inputs=((1, 0), (2, 0)), state_rank=0, effect=True),
        Node(inputs=((2, 0),), assigned=1),
        Node(inputs=((1, 0), (4, 0)), state_rank=0, effect=True),
        Node(inputs=((4, 0),), assigned=0),
        Node(inputs=((6, 0),), assigned=1),
        Node(inputs=((7, 0),), assigned=0, backward=True),
    ]
    result = cut(nodes, assign_ranks(nodes, default=0), 2, lambda rank: [(8, 0)] if rank == 0 else [])
    first, second = ([(segment.phase, segment.behind) for segment in segments] for segments in result.segments)
    assert first == [("forward", 1), ("forward", 1), ("backward", 2)]
    assert second == [("forward", 0), ("forward", 1)]


@st.composite
def computations(draw: st.DrawFn) -> list[Node]:
    nodes = [Node(available=True, constant=True), Node(available=True, constant=True, captured=True)]
    backward = False
    for _ in range(draw(st.integers(1, 14))):
        # All nodes after the first backward node are backward.
        backward = backward or draw(st.integers(0, 5)) == 0
        before = st.integers(0, len(nodes) - 1)
        inputs = draw(st.lists(before, max_size=3, unique=True))
        assigned, state_rank = draw(st.none() | st.integers(0, 2)), None
        if draw(st.integers(0, 3)) == 0:
            state_rank = draw(st.integers(EVERYWHERE, 2))
            inputs = [1] if state_rank == EVERYWHERE else [1, *inputs[:1]]
        nodes.append(
            Node(
                inputs=tuple((number, 0) for number in sorted(set(inputs))),
                assigned=assigned,
                state_rank=state_rank,
                backward=backward,
                effect=state_rank != EVERYWHERE and draw(st.booleans()),
            )
        )
    return nodes


@given(computations())
def test_every_segment_receives_the_values_that_it_takes(nodes: list[Node]) -> None:
    result = cut(nodes, assign_ranks(nodes, default=0), 3, lambda rank: [(len(nodes) - 1, 0)])
    assert _run(result) == [len(segments) for segments in result.segments]


def _run(result: Cut) -> Sequence[int]:
    """Run each rank's segments in order as far as possible; return the number that ran on each rank."""
    passed = [0] * len(result.segments)
    sent: set[int] = set()
    values: list[set[tuple[int, int]]] = [{(0, 0), (1, 0)} for _ in result.segments]
    while True:
        able = [
            rank
            for rank, segments in enumerate(result.segments)
            if passed[rank] < len(segments) and sent >= set(segments[passed[rank]].receives)
        ]
        if not able:
            return passed
        for rank in able:
            segment = result.segments[rank][passed[rank]]
            values[rank].update(result.edges[number].value for number in segment.receives)
            assert values[rank] >= set(segment.takes)
            values[rank].update(segment.gives)
            assert values[rank] >= {result.edges[number].value for number in segment.sends}
            sent.update(segment.sends)
            passed[rank] += 1
