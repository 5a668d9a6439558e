"""Which microbatch runs next on a rank: schedules as generators.

A schedule never computes anything. It is sent the microbatches that could go on (a `Ready`), and yields the one
that should, or None to wait for a message. The runtime, the tests and the simulator drive the same generators.

    schedule = interleaved(active=4)
    next(schedule)
    microbatch = schedule.send(Ready(forward=(0, 1), backward=(), live=0, unfinished=8))

Names are those of SMP v1: `simple` is GPipe (Huang et al. 2019), `interleaved` is 1F1B with backwards first
(PipeDream-flush, Narayanan et al. 2021); it is not Megatron's interleaving of virtual stages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from herringbone_spec.errors import ParallelError


@dataclass(frozen=True, slots=True)
class Ready:
    """The microbatches that could run now on one rank.

    `forward` and `backward` are sorted; a microbatch not yet started stands in `fresh`.
    `live` counts those begun and not ended; `forwards_left` those whose forward has not ended (fresh ones included).
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    fresh: tuple[int, ...]
    live: int
    forwards_left: int


Schedule = Generator["int | None", Ready, None]


def simple() -> Schedule:
    """All forwards, then all backwards; every microbatch is live at once."""
    choice: int | None = None
    while True:
        ready = yield choice
        choice = None
        if ready.forward or ready.fresh:
            choice = (ready.forward or ready.fresh)[0]
        elif ready.backward and ready.forwards_left == 0:
            choice = ready.backward[0]


def interleaved(active: int) -> Schedule:
    """Backwards first, then forwards under way, then a new microbatch while fewer than `active` are live."""
    choice: int | None = None
    while True:
        ready = yield choice
        choice = None
        if ready.backward:
            choice = ready.backward[0]
        elif ready.forward:
            choice = ready.forward[0]
        elif ready.fresh and ready.live < active:
            choice = ready.fresh[0]


def make_schedule(pipeline: str, *, active: int) -> Schedule:
    """Return the started generator that the `pipeline` setting names."""
    makers: dict[str, Callable[[], Schedule]] = {"simple": simple, "interleaved": lambda: interleaved(active)}
    if pipeline not in makers:
        raise ParallelError(f"pipeline {pipeline!r} cannot run yet; choose one of: {', '.join(makers)}")
    schedule = makers[pipeline]()
    next(schedule)
    return schedule
