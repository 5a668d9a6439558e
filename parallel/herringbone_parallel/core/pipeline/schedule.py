"""Chooses the microbatch that runs next on a rank.

A schedule is a function without state. It gets the microbatches that could run now (a `Ready`) and returns the number
of one of them, or None to wait for a message. The runtimes, the simulator and the tests call the same functions.

    choose = make_schedule("interleaved", active=4)
    microbatch = choose(Ready(forward=(0, 1), backward=(), fresh=(2,), live=2, forwards_left=8))     # 0

`simple` and `interleaved` are SMP v1's names. `simple` is GPipe (Huang et al. 2019). `interleaved` is 1F1B with
backwards first (PipeDream-flush, Narayanan et al. 2021); it is not Megatron's interleaving of virtual stages.
`zero_bubble` splits the backward as ZB-H1 does (Qi et al. 2023, arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from herringbone_contract.errors import ParallelError

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"

# The phases that a microbatch passes through on each rank, by the name of the pipeline. In a weight phase a rank
# computes the gradients of parameters, for which no other rank waits. The backward before it computes only the
# gradients of inputs, for which the rank before waits.
PHASES = {
    "simple": (FORWARD, BACKWARD),
    "interleaved": (FORWARD, BACKWARD),
    "zero_bubble": (FORWARD, BACKWARD, WEIGHT),
    "_only_forward": (FORWARD,),
}


@dataclass(frozen=True, slots=True)
class Ready:
    """The microbatches that could run now on one rank.

    `forward`, `backward` and `weight` are the sorted numbers of the microbatches that can run that phase now. `fresh`
    has those not started yet. `live` counts the microbatches that started and did not end. `forwards_left` counts those
    whose forward did not end, fresh ones included.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    fresh: tuple[int, ...]
    live: int
    forwards_left: int
    weight: tuple[int, ...] = ()


Schedule = Callable[[Ready], "int | None"]


def forwards_first(ready: Ready) -> int | None:
    """Run all forwards, then all backwards; every microbatch is live at once."""
    if ready.forward or ready.fresh:
        return (ready.forward or ready.fresh)[0]
    # A backward that started now would delay a forward whose message is on its way.
    return ready.backward[0] if ready.backward and ready.forwards_left == 0 else None


def backwards_first(ready: Ready, active: int) -> int | None:
    """Run backwards first, then started forwards, then a new microbatch while fewer than `active` are live.

    Weight phases fill the time in which a rank would wait. A microbatch is live until its weight phase ends, so at the
    limit a weight phase makes room for the next forward.
    """
    if ready.backward:
        # A backward frees the activations of its microbatch, and the rank before waits for its result.
        return ready.backward[0]
    if ready.forward:
        return ready.forward[0]
    if ready.fresh and ready.live < active:
        return ready.fresh[0]
    return ready.weight[0] if ready.weight else None


def make_schedule(pipeline: str, *, active: int) -> Schedule:
    """Return the schedule that the `pipeline` setting names; `active` limits the live microbatches of a rank.

    >>> choose = make_schedule("simple", active=4)
    >>> choose(Ready(forward=(), backward=(0,), fresh=(1, 2), live=1, forwards_left=2))
    1

    Raises `ParallelError` for another name, with the choices.
    """
    if pipeline not in PHASES:
        raise ParallelError(f"pipeline {pipeline!r} is not one of: {', '.join(PHASES)}. Set `pipeline` to one of them.")
    # The other pipelines differ only in their phases, so `Ready` is empty for a phase that a pipeline does not have.
    return forwards_first if pipeline == "simple" else partial(backwards_first, active=active)


def make_lockstep(pipeline: str, *, active: int, count: int) -> Schedule:
    """Return the schedule of a pipeline whose ranks share layers with ranks of other pipelines.

    Its order depends on no message's arrival, so that all ranks with the same partition run the microbatches in the
    same order: forwards until `active` microbatches are live, then a backward and a forward in turn. Each runs to its
    end before the next begins, on every rank of the pipeline, so no rank waits for a later one.

    >>> choose = make_lockstep("interleaved", active=2, count=4)
    >>> choose(Ready(forward=(), backward=(0, 1), fresh=(2, 3), live=2, forwards_left=2))
    0
    """
    limit = count if pipeline == "simple" else active
    return partial(_in_order, active=limit, count=count)


def _in_order(ready: Ready, active: int, count: int) -> int | None:
    if ready.forwards_left > len(ready.fresh):
        # A forward has begun and not ended; it may wait for a message.
        return ready.forward[0] if ready.forward else None
    if ready.fresh and ready.live < active:
        return ready.fresh[0]
    # The oldest microbatch that has not ended. Its backward may have begun, and wait for a message.
    oldest = count - len(ready.fresh) - ready.live
    return oldest if oldest in ready.backward or oldest in ready.weight else None
