"""Simulated steps as text: time runs to the right, one row per rank, F, B and W with the microbatch's number."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.schedule import PHASES
from herringbone_parallel.core.pipeline.simulate import Link, Program, Segment, Simulation, simulate


def chain(ranks: int, forward: int = 1, backward: int = 1, weight: int = 0, kept: int = 0) -> list[Segment]:
    return [Segment(rank, forward, backward, weight, kept_bytes=kept) for rank in range(ranks)]


def draw(simulation: Simulation) -> list[str]:
    """Draw a step whose times are whole numbers."""
    rows = []
    for events in simulation.events:
        cells = [" . "] * int(simulation.step_s)
        for event in events:
            for tick in range(int(event.start_s), int(event.end_s)):
                cells[tick] = f"{event.phase[0].upper()}{event.microbatch} "
        rows.append("".join(cells))
    return rows


def run(programs: list[Program], pipeline: str, active: int = 99, link: Link | None = None) -> Simulation:
    return simulate(programs, pipeline=pipeline, active=active, link=link)


def test_simple_fills_and_drains_forwards_then_backwards() -> None:
    assert draw(run([chain(3)] * 3, "simple")) == [
        "F0 F1 F2  .  .  .  . B0 B1 B2 ",
        " . F0 F1 F2  .  . B0 B1 B2  . ",
        " .  . F0 F1 F2 B0 B1 B2  .  . ",
    ]


def test_interleaved_runs_backwards_as_soon_as_possible() -> None:
    assert draw(run([chain(2)] * 4, "interleaved", active=4)) == [
        "F0 F1 F2 B0 F3 B1  . B2  . B3 ",
        " . F0 B0 F1 B1 F2 B2 F3 B3  . ",
    ]


def test_interleaved_with_backwards_twice_as_long() -> None:
    assert draw(run([chain(3, backward=2)] * 3, "interleaved")) == [
        "F0 F1 F2  .  .  .  . B0 B0  . B1 B1  . B2 B2 ",
        " . F0 F1 F2  . B0 B0  . B1 B1  . B2 B2  .  . ",
        " .  . F0 B0 B0 F1 B1 B1 F2 B2 B2  .  .  .  . ",
    ]


def test_zero_bubble_fills_the_waits_with_weights() -> None:
    assert draw(run([chain(3, backward=2, weight=1)] * 4, "zero_bubble")) == [
        "F0 F1 F2 F3  . B0 W0 B1 W1 B2 W2 B3 W3  . ",
        " . F0 F1 F2 B0 F3 B1 W0 B2 W1 B3 W2 W3  . ",
        " .  . F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3 ",
    ]


def test_only_forward_is_a_staircase_without_backwards() -> None:
    simulation = run([chain(3, kept=7)] * 4, "_only_forward", active=5)
    assert draw(simulation) == [
        "F0 F1 F2 F3  .  . ",
        " . F0 F1 F2 F3  . ",
        " .  . F0 F1 F2 F3 ",
    ]
    assert simulation.peak_live == (1, 1, 1)
    assert simulation.peak_kept_bytes == (0, 0, 0)


def test_a_zig_zag_visits_a_rank_twice_each_way() -> None:
    program = [Segment(0, 1, 1), Segment(1, 1, 1), Segment(0, 1, 1)]
    assert draw(run([program] * 2, "interleaved")) == [
        "F0 F1 F0 B0 F1 B0 B1  . B1 ",
        " . F0 F1  . B0  .  . B1  . ",
    ]


def test_consecutive_segments_of_a_rank_run_without_a_choice() -> None:
    program = [Segment(0, 1, 1), Segment(0, 1, 1), Segment(1, 1, 1)]
    assert draw(run([program] * 2, "simple")) == [
        "F0 F0 F1 F1  .  . B0 B0 B1 B1 ",
        " .  . F0  . F1 B0 B1  .  .  . ",
    ]


def test_microbatches_may_take_different_ways_and_add_gradients_in_order() -> None:
    short, long = [Segment(0, 1, 1)], chain(2)
    assert draw(run([short, long, short], "interleaved")) == [
        "F0 B0 F1 F2  . B1 B2 ",
        " .  .  . F1 B1  .  . ",
    ]


@pytest.mark.parametrize("active", ["partitions", "partitions + 2", "all"])
@pytest.mark.parametrize("backward", [1, 2])
@pytest.mark.parametrize("microbatches", [4, 8, 32])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
def test_equal_stages_are_idle_as_long_as_theory_says(
    pipeline: str, ranks: int, microbatches: int, backward: int, active: str
) -> None:
    cap = {"partitions": ranks, "partitions + 2": ranks + 2, "all": microbatches}[active]
    simulation = run([chain(ranks, backward=backward)] * microbatches, pipeline, cap)
    assert simulation.step_s == (microbatches + ranks - 1) * (1 + backward)
    assert simulation.idle == pytest.approx([(ranks - 1) / (microbatches + ranks - 1)] * ranks)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (2, 32), (4, 8), (4, 32), (8, 8), (8, 32)])
def test_zero_bubble_has_a_third_of_the_bubble_for_the_same_cap(ranks: int, microbatches: int) -> None:
    """ZB-H1: (p - 1)(F + B - 2W) where B is the whole backward; 1F1B has (p - 1)(F + B)."""
    programs = [chain(ranks, forward=1, backward=2, weight=1)] * microbatches
    assert run(programs, "zero_bubble", ranks + 2).step_s == 3 * microbatches + (ranks - 1)
    assert run(programs, "interleaved", ranks + 2).step_s == 3 * microbatches + 3 * (ranks - 1)


def test_simple_keeps_all_microbatches_and_interleaved_at_most_the_active_ones() -> None:
    programs = [chain(4, backward=2, weight=1, kept=10)] * 16
    assert run(programs, "simple", 6).peak_live == (16, 16, 16, 16)
    assert run(programs, "simple", 6).peak_kept_bytes == (160, 160, 160, 160)
    assert run(programs, "interleaved", 6).peak_live == (6, 6, 4, 1)
    assert run(programs, "interleaved", 6).peak_kept_bytes == (60, 60, 40, 10)
    assert run(programs, "interleaved", 4).peak_live == (4, 4, 4, 1)
    assert max(run(programs, "zero_bubble", 6).peak_live) == 6


def test_a_message_takes_the_latency_and_its_bytes_and_links_carry_one_at_a_time() -> None:
    program = [Segment(0, 1, 1, sent_bytes=30), Segment(1, 1, 1)]
    assert draw(run([program] * 2, "simple", link=Link(latency_s=1, bytes_per_s=10))) == [
        "F0 F1  .  .  .  .  .  .  .  .  .  .  .  . B0  .  . B1 ",
        " .  .  .  .  . F0  .  . F1 B0 B1  .  .  .  .  .  .  . ",
    ]


def test_no_bytes_cross_between_segments_of_one_rank() -> None:
    program = [Segment(0, 1, 1, sent_bytes=10**9), Segment(0, 1, 1)]
    assert run([program], "interleaved", link=Link(latency_s=50, bytes_per_s=1)).step_s == 4


def test_a_rank_that_a_program_never_visits_is_idle() -> None:
    assert run([[Segment(0, 1, 1), Segment(2, 1, 1)]] * 2, "interleaved").idle[1] == 1.0


@pytest.mark.parametrize(("cores", "step_s"), [(4.0, 33.0), (2.0, 50.0), (1.0, 96.0)])
def test_ranks_that_share_cores_run_slower_only_while_too_many_run(cores: float, step_s: float) -> None:
    step = simulate([chain(4, backward=2)] * 8, pipeline="interleaved", active=6, cores=cores)
    assert step.step_s == pytest.approx(step_s)
    # A core is never busier than always.
    assert sum(1 - idle for idle in step.idle) * step.step_s >= 96 - 1e-6


def test_two_ranks_on_one_core_end_together() -> None:
    programs: list[Program] = [[Segment(0, 2, 0)], [Segment(1, 3, 0)]]
    step = simulate(programs, pipeline="_only_forward", active=1, cores=1.0)
    assert [events[0].end_s for events in step.events] == [4.0, 5.0]


def test_invalid_simulations_are_refused() -> None:
    with pytest.raises(ParallelError, match="cores"):
        simulate([chain(2)], pipeline="simple", active=1, cores=0.0)
    with pytest.raises(ParallelError, match="both must be at least 1"):
        run([], "simple")
    with pytest.raises(ParallelError, match="both must be at least 1"):
        run([chain(2)], "simple", active=0)
    with pytest.raises(ParallelError, match="zero_bubble"):
        run([chain(2)], "gpipe")
    with pytest.raises(ParallelError, match=r"weight_s \(3\) is a part of backward_s \(2\)"):
        Segment(0, 1, 2, weight_s=3)
    with pytest.raises(ParallelError, match="bytes_per_s > 0"):
        Link(bytes_per_s=0)


segments = st.builds(
    Segment, rank=st.integers(0, 4), forward_s=st.integers(0, 3), backward_s=st.integers(2, 5),
    weight_s=st.integers(0, 2), sent_bytes=st.integers(0, 3), kept_bytes=st.integers(0, 3),
)  # fmt: skip


@given(
    programs=st.lists(st.lists(segments, max_size=6), min_size=1, max_size=6),
    pipeline=st.sampled_from(sorted(PHASES)),
    active=st.integers(1, 8),
    latency=st.integers(0, 3),
)
def test_any_program_ends_under_any_schedule_and_cap(
    programs: list[Program], pipeline: str, active: int, latency: int
) -> None:
    simulation = run(programs, pipeline, active, Link(latency_s=latency, bytes_per_s=1))
    done = sorted((event.rank, event.phase, event.microbatch) for events in simulation.events for event in events)
    assert done == sorted(
        (segment.rank, phase, microbatch)
        for microbatch, program in enumerate(programs)
        for segment in program
        for phase in PHASES[pipeline]
    )
    for events in simulation.events:
        assert all(before.end_s <= after.start_s for before, after in pairwise(events))
    if pipeline != "simple":
        assert max(simulation.peak_live) <= active


@given(
    program=st.lists(segments, min_size=1, max_size=6),
    microbatches=st.integers(1, 5),
    pipeline=st.sampled_from(["interleaved", "simple", "zero_bubble"]),
    active=st.integers(1, 8),
    latency=st.integers(0, 3),
)
def test_no_schedule_is_faster_than_its_busiest_rank(
    program: list[Segment], microbatches: int, pipeline: str, active: int, latency: int
) -> None:
    work = Counter[int]()
    for segment in program:
        work[segment.rank] += int(segment.forward_s + segment.backward_s)
    step_s = run([program] * microbatches, pipeline, active, Link(latency_s=latency, bytes_per_s=1)).step_s
    assert microbatches * max(work.values()) <= step_s


def test_equal_stages_without_messages_wait_only_to_fill_and_to_empty() -> None:
    for pipeline in ("interleaved", "simple"):
        step_s = run([chain(4)] * 6, pipeline).step_s
        assert step_s == (6 + 4 - 1) * 2
