"""Which microbatch runs next on a rank: schedules as generators.

A schedule never computes anything. It is sent the microbatches that could go on (a `Ready`), and yields the one
that should, or None to wait for a message. The runtime, the tests and the simulator drive the same generators.

    schedule = interleaved(active=4)
    next(schedule)
    microbatch = schedule.send(Ready(forward=(0, 1), backward=(), fresh=(2,), live=2, forwards_left=8))

On a rank a microbatch passes through the phases of the pipeline (`PHASES`), one at a time, so a number says it all.
`simple` and `interleaved` are SMP v1's names: `simple` is GPipe (Huang et al. 2019), `interleaved` is 1F1B with
backwards first (PipeDream-flush, Narayanan et al. 2021); it is not Megatron's interleaving of virtual stages.
`zero_bubble` splits the backward as ZB-H1 does (Qi et al. 2023, arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from herringbone_contract.errors import ParallelError

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"

# What a microbatch goes through on a rank. Where there is a weight phase, the backward computes the gradients of
# inputs alone, which the rank before waits for; the gradients of parameters, which nobody waits for, come later.
PHASES = {
    "simple": (FORWARD, BACKWARD),
    "interleaved": (FORWARD, BACKWARD),
    "zero_bubble": (FORWARD, BACKWARD, WEIGHT),
    "_only_forward": (FORWARD,),
}


@dataclass(frozen=True, slots=True)
class Ready:
    """The microbatches that could run now on one rank.

    `forward`, `backward` and `weight` are sorted; a microbatch not yet started stands in `fresh`.
    `live` counts those begun and not ended; `forwards_left` those whose forward has not ended (fresh ones included).
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    fresh: tuple[int, ...]
    live: int
    forwards_left: int
    weight: tuple[int, ...] = ()


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


def zero_bubble(active: int) -> Schedule:
    """As `interleaved`, and where that would wait, the gradients of a microbatch's parameters.

    A microbatch is live until its weight phase has ended, so at the cap weights make room for the next forward.
    """
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
        elif ready.weight:
            choice = ready.weight[0]


def only_forward(active: int) -> Schedule:
    """Forwards under way first, then a new one while fewer than `active` are live; for steps without a backward."""
    choice: int | None = None
    while True:
        ready = yield choice
        choice = None
        assert not ready.backward, "the call of backward() should have been refused"
        if ready.forward:
            choice = ready.forward[0]
        elif ready.fresh and ready.live < active:
            choice = ready.fresh[0]


def make_schedule(pipeline: str, *, active: int) -> Schedule:
    """Return the started generator that the `pipeline` setting names.

    >>> make_schedule("simple", active=4).send(Ready(forward=(), backward=(0,), fresh=(1, 2), live=1, forwards_left=2))
    1

    Raises `ParallelError` for another name, with the choices.
    """
    makers: dict[str, Callable[[], Schedule]] = {
        "simple": simple,
        "interleaved": lambda: interleaved(active),
        "zero_bubble": lambda: zero_bubble(active),
        "_only_forward": lambda: only_forward(active),
    }
    if pipeline not in makers:
        raise ParallelError(f"pipeline {pipeline!r} is not one of: {', '.join(makers)}. Mend `pipeline`.")
    schedule = makers[pipeline]()
    next(schedule)
    return schedule
