"""The differences between the steps of one process and those of a reference, each with its likely reason. Pure.

A difference is blamed on the first thing that differs in the order of causes: what was restored, the data, the random
numbers, and only then the kernels. Later differences of weights follow from it, and are passed over. Data, settings and
kinds of state do not follow from weights, so they are compared all along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from herringbone_contract.rehearsal.alignment import distance, same
from herringbone_contract.rehearsal.records import Step
from herringbone_contract.rehearsal.verdict import Reason

# Parts of the samples: so many stay at their place under an augmentation that only changes some, and so few are found
# elsewhere by chance.
_STILL, _ELSEWHERE = 0.25, 0.02


class Difference(NamedTuple):
    """A difference at a place, counted from 0; `detail` says what differs."""

    reason: Reason
    place: int
    tensor: str
    detail: str


class Context(NamedTuple):
    """The knowledge of both runs with which one process is compared.

    After a restart, the first step of each optimizer shows what was restored, if `restores`. `known` are the samples of
    the whole reference run; `surplus` and `lack` count those that the disturbed run used too often, and too rarely.
    `tolerance` is the part of the norm by which weights may differ, 0.0 for none.
    """

    known: Counter[str]
    restarted: bool = False
    restores: bool = False
    surplus: int = 0
    lack: int = 0
    tolerance: float = 0.0


class _Moved(NamedTuple):
    """The samples of all steps that differ: the part at its place, and the part that the reference has elsewhere.

    `keeps`: a tensor of the batches, such as the labels, is equal in all these steps, and so is the order. `mixes`:
    each tensor of a batch differs, although the indices are equal.
    """

    still: float
    elsewhere: float
    keeps: bool
    mixes: bool


def differences(
    steps: Mapping[int, Step], reference: Mapping[int, Step], context: Context
) -> tuple[list[Difference], dict[int, str]]:
    """Return the first difference of each reason, and the first tensor that differs at each place."""
    places = [place for place in sorted(steps) if place in reference]
    moved = _moved([(steps[place], reference[place]) for place in places], context.known)
    begins = {step.optimizer: place for place, step in sorted(steps.items(), reverse=True)} if context.restores else {}
    found = {one.reason: one for one in (_resized(steps, reference, places) if context.tolerance else ())}
    tensors: dict[int, str] = {}
    # What differs from here on may follow from what differed before.
    explained = bool(found)
    for place in places:
        step, other = steps[place], reference[place]
        restored = begins.get(step.optimizer) == place
        tensor = _tensor(step, other, 0.0 if restored else context.tolerance)
        here = [*_restored(step, other, place, "" if explained else tensor)] if restored else []
        here += _settings(step, other, place)
        if step.samples != other.samples:
            here += _data(step, other, place, context, moved, tensor)
        follows = not tensor and (step.samples, step.state) != (other.samples, other.state)
        explained = explained or bool(here) or follows
        if not explained and not (tensor and context.restarted and place == min(steps)):
            here += _computed(step, other, place, tensor, is_first=place == places[0])
        for difference in here:
            found.setdefault(difference.reason, difference)
        explained = explained or bool(here or tensor)
        if tensor:
            tensors[place] = tensor
    return list(found.values()), tensors


def _tensor(step: Step, other: Step, tolerance: float) -> str:
    """Return the name of the first tensor that differs, "" if none does."""
    names = [*other.tensors, *(step.tensors.keys() - other.tensors.keys())]
    unequal = [name for name in names if not same(step.tensors.get(name), other.tensors.get(name))]
    if tolerance and (step.draws or other.draws or distance(step, other) <= tolerance):
        return ""
    return unequal[0] if unequal else ""


def _settings(step: Step, other: Step, place: int) -> Iterator[Difference]:
    names = {**other.settings, **step.settings}
    changed = [name for name in names if _setting(step, name) != _setting(other, name)]
    if changed:
        shown = [f"{name} is {_setting(step, name)!r} instead of {_setting(other, name)!r}" for name in changed[:3]]
        yield Difference(Reason.SETTINGS, place, "", ", ".join(shown))


def _setting(step: Step, name: str) -> Any:
    return step.settings.get(name, "missing")


def _restored(step: Step, other: Step, place: int, tensor: str) -> Iterator[Difference]:
    if tensor:
        yield Difference(Reason.WEIGHTS, place, tensor, f"{tensor} is not as it was before this step")
    changed = [kind for kind in {**other.state, **step.state} if step.state.get(kind) != other.state.get(kind)]
    if changed:
        how = "differs" if step.state else "is empty: it differs"
        detail = f"the state of optimizer {step.optimizer} {how} in {', '.join(changed[:4])}"
        yield Difference(Reason.OPTIMIZER, place, "", detail)


def _moved(pairs: list[tuple[Step, Step]], known: Counter[str]) -> _Moved:
    unequal = [(step, other) for step, other in pairs if step.samples != other.samples]
    positions = [two for step, other in unequal for two in zip(step.samples, other.samples, strict=False)]
    gone = [one for one, two in positions if one != two]
    # A tensor that every batch shares, such as a mask of ones, says nothing.
    values = [set(column) for column in zip(*(batch for _, other in pairs for batch in other.batches), strict=False)]
    batches = [(_last(step), _last(other)) for step, other in unequal if _last(step)[0] == _last(other)[0] != ""]
    columns = [number for number, column in enumerate(values) if number and len(column) > 1 and batches]
    return _Moved(
        1 - len(gone) / len(positions) if positions else 0.0,
        sum(one in known for one in gone) / len(gone) if gone else 0.0,
        any(
            all(mine[column : column + 1] == theirs[column : column + 1] for mine, theirs in batches)
            for column in columns
        ),
        len(columns) > 1 and all(mine[column] != theirs[column] for mine, theirs in batches for column in columns),
    )


def _last(step: Step) -> list[str]:
    return step.batches[-1] if step.batches else [""]


def _resized(steps: Mapping[int, Step], reference: Mapping[int, Step], places: list[int]) -> Iterator[Difference]:
    """Yield that most steps have another number of samples; the last one of an epoch has, on other ranks."""
    sizes = [(place, len(steps[place].samples), len(reference[place].samples)) for place in places]
    resized = [(place, mine, theirs) for place, mine, theirs in sizes if mine != theirs and mine and theirs]
    if len(places) > 1 and len(resized) > len(places) / 2:
        place, mine, theirs = resized[0]
        yield Difference(Reason.SAMPLES, place, "", _BATCH.format(mine, theirs))


def _data(step: Step, other: Step, place: int, context: Context, moved: _Moved, tensor: str) -> Iterator[Difference]:
    is_set = Counter(step.samples) == Counter(other.samples)
    is_torn = context.restarted and bool(context.surplus or context.lack)
    if context.tolerance:
        if is_torn and not is_set:
            yield _samples(place, context)
        return
    is_drawn_elsewhere = "" != _last(step)[0] != _last(other)[0] != ""
    is_found = moved.still < _STILL and moved.elsewhere > _ELSEWHERE
    is_order = is_set or is_drawn_elsewhere or (not moved.keeps and (is_found or moved.mixes))
    drawn = _random(step, other)
    if is_order and is_torn and moved.elsewhere > _ELSEWHERE:
        yield _samples(place, context)
    elif is_order:
        why = f"the random numbers of {drawn} differ at this step" if drawn else _ORDERS
        yield Difference(Reason.ORDER, place, "", f"the samples come in another order; {why}")
    # Data that a model has made follow from its weights.
    if not is_set and not tensor and not is_drawn_elsewhere and not (is_order and moved.elsewhere):
        why = f"the random numbers of {drawn} differ at this step" if drawn else _CONTENTS
        yield Difference(Reason.CONTENTS, place, "", f"samples have other contents; {why}")


_BATCH = (
    "a step has {} samples instead of {}: this layout has another global batch, so that its steps are others; divide"
    " one global batch by the number of ranks"
)
_ORDERS = (
    "the recorded random numbers are equal, so the order is from a set or a dict (PYTHONHASHSEED), a folder, or a"
    " generator of the script's own"
)
_CONTENTS = "the recorded random numbers are equal, so they draw from a generator of the script's own, or in workers"


def _samples(place: int, context: Context) -> Difference:
    detail = f"{context.surplus} samples were used once more, and {context.lack} once less, than undisturbed"
    return Difference(Reason.SAMPLES, place, "", detail)


def _computed(step: Step, other: Step, place: int, tensor: str, *, is_first: bool) -> Iterator[Difference]:
    """Yield what differs although everything that was recorded before it is equal."""
    if tensor and is_first:
        yield Difference(Reason.RANDOM, place, tensor, f"{tensor} differs before the first step")
    elif tensor:
        yield Difference(Reason.KERNEL, place, tensor, f"{tensor} differs after a step with equal outputs")
    elif (step.outputs, step.loss) == (other.outputs, other.loss):
        return
    elif (step.draws or other.draws) and (drawn := _random(step, other)):
        yield Difference(Reason.RANDOM, place, "", f"the random numbers of {drawn} differ")
    elif step.outputs == other.outputs != "" and step.loss != other.loss:
        yield Difference(Reason.TARGETS, place, "", f"equal outputs give the loss {step.loss}, and not {other.loss}")
    else:
        yield Difference(Reason.KERNEL, place, "", "equal weights, samples and random numbers give other outputs")


def _random(step: Step, other: Step) -> str:
    return ", ".join(name for name in step.random if other.random.get(name) != step.random[name])
