"""What a rank tells its schedule is kept up to date; here each answer is compared with one from all microbatches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from herringbone_parallel.core.pipeline.schedule import PHASES, Ready
from herringbone_parallel.core.pipeline.simulated_rank import Rank, Runner, Way


def from_all_runners(rank: Rank) -> Ready:
    def runnable(phase: str) -> tuple[int, ...]:
        return tuple(
            runner.microbatch
            for runner in rank.runners
            if runner.started and runner.next is not None and runner.next.phase == phase and rank.can_run(runner)
        )

    left = [runner for runner in rank.runners if runner.next is not None]
    return Ready(
        forward=runnable("forward"),
        backward=runnable("backward"),
        fresh=tuple(runner.microbatch for runner in left if not runner.started),
        live=sum(runner.started for runner in left),
        forwards_left=sum(runner.next is not None and runner.next.phase == "forward" for runner in left),
        weight=runnable("weight"),
    )


@given(
    homes=st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=5),
    pipeline=st.sampled_from(["interleaved", "simple", "zero_bubble"]),
    active=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_messages_in_any_order_leave_the_same_choices_as_a_look_at_all_microbatches(homes, pipeline, active, order):
    ways = [Way.of(program, 0, PHASES[pipeline]) for program in homes]
    rank = Rank([Runner(number, way) for number, way in enumerate(ways)], pipeline, active)
    messages = [(runner, task) for runner in rank.runners for task in runner.tasks]
    order.shuffle(messages)
    for runner, task in messages:
        rank.receive(runner, task)
        assert rank.ready() == from_all_runners(rank)
        while (chosen := rank.choose()) is not None:
            assert rank.ready() == from_all_runners(rank)
            if not chosen.begun:
                chosen.begun = True
                rank.live += 1
            rank.end_task(chosen)
            assert rank.ready() == from_all_runners(rank)
    assert rank.live == 0
    assert all(runner.next is None for runner in rank.runners)
