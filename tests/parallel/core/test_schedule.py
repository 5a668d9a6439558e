"""Schedules as pictures: time runs to the right, one row per rank, F and B with the number of the microbatch."""

from __future__ import annotations

import pytest

from herringbone_parallel.core.schedule import Ready, make_schedule
from herringbone_spec.errors import ParallelError


def draw(pipeline: str, ranks: int, microbatches: int, active: int) -> tuple[list[str], int]:
    """Draw a chain of stages, each forward and backward one tick long; also return the most live at once."""
    forward_at = [[None] * microbatches for _ in range(ranks)]
    backward_at: list[list[int | None]] = [[None] * microbatches for _ in range(ranks)]
    schedules = [make_schedule(pipeline, active=active) for _ in range(ranks)]
    rows = ["" for _ in range(ranks)]
    most_live = 0
    for tick in range(1000):
        if all(time is not None for row in backward_at for time in row):
            return rows, most_live
        for rank in range(ranks):

            def done(table: list[list[int | None]], where: int, which: int, now: int = tick) -> bool:
                time = table[where][which]
                return time is not None and time < now

            started = [forward_at[rank][m] is not None for m in range(microbatches)]
            ended = [backward_at[rank][m] is not None for m in range(microbatches)]
            arrived = [
                m for m in range(microbatches) if not started[m] and (rank == 0 or done(forward_at, rank - 1, m))
            ]
            backward = [
                m
                for m in range(microbatches)
                if started[m] and not ended[m] and (rank == ranks - 1 or done(backward_at, rank + 1, m))
            ]
            live = sum(s and not e for s, e in zip(started, ended, strict=True))
            choice = schedules[rank].send(Ready((), tuple(backward), tuple(arrived), live, microbatches - sum(started)))
            if choice is None:
                rows[rank] += " . "
            elif started[choice]:
                backward_at[rank][choice] = tick
                rows[rank] += f"B{choice} "
            else:
                forward_at[rank][choice] = tick  # type: ignore[call-overload]
                most_live = max(most_live, live + 1)
                rows[rank] += f"F{choice} "
    raise AssertionError(rows)


def test_simple_fills_and_drains_forwards_then_backwards() -> None:
    rows, live = draw("simple", ranks=3, microbatches=3, active=5)
    assert rows == [
        "F0 F1 F2  .  .  .  . B0 B1 B2 ",
        " . F0 F1 F2  .  . B0 B1 B2  . ",
        " .  . F0 F1 F2 B0 B1 B2  .  . ",
    ]
    assert live == 3


def test_interleaved_goes_back_as_soon_as_it_can() -> None:
    rows, live = draw("interleaved", ranks=2, microbatches=4, active=4)
    assert rows == [
        "F0 F1 F2 B0 F3 B1  . B2  . B3 ",
        " . F0 B0 F1 B1 F2 B2 F3 B3  . ",
    ]
    assert live == 3


@pytest.mark.parametrize("active", [1, 2, 3])
def test_interleaved_keeps_at_most_the_active_microbatches_live(active: int) -> None:
    _, live = draw("interleaved", ranks=3, microbatches=8, active=active)
    assert live == active


def test_both_take_as_long_as_theory_says() -> None:
    for ranks, microbatches in ((2, 4), (4, 8)):
        rows, _ = draw("simple", ranks, microbatches, active=99)
        ideal = 2 * (microbatches + ranks - 1)
        assert max(len(row) // 3 for row in rows) == ideal


def test_an_unknown_pipeline_is_refused_with_the_choices() -> None:
    with pytest.raises(ParallelError, match="simple, interleaved"):
        make_schedule("_only_forward", active=4)
