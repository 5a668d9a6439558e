"""Find the step at which each process of a run went on. Pure.

    undisturbed    0  1  2  3  4  5  6  7
    process 1      0  1  2  3  4                 killed
    process 2            2  3  4  5  6  7        counts from 1 again; goes on from the checkpoint behind step 1

A restart is found by its weights: those before its first step are those before a step of an earlier process, or, where
that had not come so far, of the undisturbed run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from herringbone_contract.rehearsal.records import Process, Step, Tensor

# Sums of one tensor's shards in another order.
_TIGHT = 1e-7


class Visit(msgspec.Struct, frozen=True):
    """The steps of one process by their places in the run, and those that earlier processes had made there."""

    steps: Mapping[int, Step]
    earlier: Mapping[int, Step]

    @property
    def start(self) -> int:
        """The place of the first step."""
        return min(self.steps)


def visits(processes: Sequence[Process], base: Mapping[int, Step]) -> list[Visit]:
    """Return where the processes of a rank were; `base` are the undisturbed run's steps by their places.

    >>> visits([Process([Step(1), Step(2)])], {})[0].start
    0
    """
    found: list[Visit] = []
    earlier: dict[int, Step] = {}
    for process in processes:
        if not process.steps:
            continue
        first = process.steps[0]
        start = _start(first, earlier, base) if earlier else _entry(first, base)
        steps = {start + step.number - first.number: step for step in process.steps}
        found.append(Visit(steps, dict(earlier)))
        earlier |= steps
    return found


def effective(found: Sequence[Visit]) -> dict[int, Step]:
    """Return the steps that led to the last weights: what a later process redid is left out."""
    steps: dict[int, Step] = {}
    for visit in found:
        steps = {place: step for place, step in steps.items() if place < visit.start} | dict(visit.steps)
    return steps


def redone(found: Sequence[Visit]) -> int:
    """Return how many steps were made again."""
    return sum(len(visit.steps.keys() & visit.earlier.keys()) for visit in found)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Say whether two tensors have the same bits, or the same sums where they are spread over ranks."""
    if one is None or other is None:
        return one is other
    if one.digest and other.digest:
        return one.digest == other.digest
    scale = math.sqrt(max(one.squares or 0.0, other.squares or 0.0))
    return apart(one, other) <= _TIGHT * scale


def apart(one: Tensor, other: Tensor) -> float:
    """Return the least distance that two tensors with these sums can have."""
    if None in (one.squares, other.squares, one.total, other.total):
        return 0.0 if one.squares == other.squares else math.inf
    assert one.squares is not None
    assert other.squares is not None
    assert one.total is not None
    assert other.total is not None
    norms = abs(math.sqrt(one.squares) - math.sqrt(other.squares))
    return max(norms, abs(one.total - other.total) / math.sqrt(max(1, one.size)))


def distance(one: Step, other: Step) -> float:
    """Return the least distance of the weights of two steps, as a part of their norm."""
    shared = one.tensors.keys() & other.tensors.keys()
    norm = sum(one.tensors[name].squares or 0.0 for name in shared)
    total = sum(apart(one.tensors[name], other.tensors[name]) ** 2 for name in shared)
    return math.sqrt(total / norm) if norm else float(total > 0)


def _entry(first: Step, base: Mapping[int, Step]) -> int:
    """Return the place of a run's first known step, which may be a later one: a killed host takes its records along."""
    known = {place: step for place, step in base.items() if step.optimizer == first.optimizer}
    if not known:
        return first.number - 1
    place = max(known, key=lambda place: _likeness(first, known[place], place))
    is_equal = _likeness(first, known[place], place)[1] == 0.0
    return place if is_equal and place > min(known) else first.number - 1


def _start(first: Step, earlier: Mapping[int, Step], base: Mapping[int, Step]) -> int:
    known = {place: step for place, step in {**base, **earlier}.items() if step.optimizer == first.optimizer}
    if not known:
        return 0
    place = max(known, key=lambda place: _likeness(first, known[place], place))
    if place > min(known):
        return place
    # Weights of the beginning: a script that begins anew, or one that has loaded all but the weights.
    state = [one for one, step in known.items() if first.state and step.state == first.state]
    data = [one for one, step in known.items() if first.samples and step.samples == first.samples]
    likely = state or data
    return place if place in likely else max(likely, default=place)


def _likeness(first: Step, step: Step, place: int) -> tuple[float, ...]:
    names = first.tensors.keys() | step.tensors.keys()
    equal = sum(same(first.tensors.get(name), step.tensors.get(name)) for name in names)
    return (
        equal,
        0.0 if equal == len(names) else -distance(first, step),
        first.state == step.state,
        first.samples == step.samples,
        first.settings == step.settings,
        place,
    )
