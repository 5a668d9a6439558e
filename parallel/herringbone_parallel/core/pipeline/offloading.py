"""Decides when a pipeline's activations are in the device's memory: the order of a rank's tasks, and a horizon.

    order = task_order(rank=0, partitions=2, microbatches=4, pipeline="interleaved", active=3)
    due(order, done={order[0]}, horizon=1)          # microbatches whose activations belong into the device's memory

A task is one phase of one microbatch on one rank. Activations of a microbatch leave the device after its forward if
more than `horizon` tasks come before its backward. They come back when the horizon reaches that backward. Messages may
arrive in another order than foreseen. So `due` asks which tasks are done, and not how many.

Source of the horizon's meaning: SMP v1, `activation_loading_horizon`: "how early the activations should be loaded back
[...], expressed in number of pipeline tasks".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD
from herringbone_parallel.core.pipeline.simulate import Segment, simulate


class Task(NamedTuple):
    """One phase of one microbatch on one rank."""

    phase: str
    microbatch: int


def task_order(*, rank: int, partitions: int, microbatches: int, pipeline: str, active: int) -> tuple[Task, ...]:
    """Return the tasks of a rank in the order in which the schedule runs them, if all partitions take the same time.

    >>> order = task_order(rank=0, partitions=2, microbatches=2, pipeline="interleaved", active=4)
    >>> " ".join(f"{task.phase[0]}{task.microbatch}" for task in order)
    'f0 f1 b0 b1'
    """
    # A backward takes twice as long as a forward, and half of it is for the gradients of parameters.
    stages = [Segment(stage, forward_s=1, backward_s=2, weight_s=1) for stage in range(partitions)]
    simulation = simulate([stages] * microbatches, pipeline=pipeline, active=active)
    events = sorted(simulation.events[rank], key=lambda event: event.start_s)
    return tuple(Task(event.phase, event.microbatch) for event in events)


def due(order: Sequence[Task], done: Collection[Task], horizon: int) -> tuple[int, ...]:
    """Return the microbatches whose backward is the next task or one of the `horizon` tasks after it, soonest first.

    >>> order = [Task("forward", 0), Task("forward", 1), Task("backward", 0), Task("backward", 1)]
    >>> due(order, {order[0]}, 1)
    (0,)
    """
    left = (task for task in order if task not in done)
    return tuple(task.microbatch for task in islice(left, horizon + 1) if task.phase == BACKWARD)


def peak(order: Sequence[Task], horizon: int | None) -> int:
    """Return the largest number of microbatches whose activations are in the device's memory; no horizon keeps all.

    >>> order = [Task("forward", 0), Task("forward", 1), Task("backward", 0), Task("backward", 1)]
    >>> peak(order, None), peak(order, 0)
    (2, 1)
    """
    most = 0
    for index, task in enumerate(order):
        forwarded = {before.microbatch for before in order[: index + 1] if before.phase == FORWARD}
        ahead = len(order) if horizon is None else horizon
        # The running task needs its own; the others are there if the horizon reaches their backward.
        held = {task.microbatch} | forwarded.intersection(due(order, order[:index], ahead))
        most = max(most, len(held))
    return most
