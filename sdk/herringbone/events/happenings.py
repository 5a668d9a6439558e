"""The single things that happened to a job, in sentences: states, restarts, hangs, checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from herringbone.events.kinds import (
    Checkpoint,
    Fault,
    Hang,
    Idle,
    Removed,
    Restart,
    StackGroup,
    Stacks,
    State,
    Stop,
    Straggler,
)
from herringbone.events.view import JobView
from herringbone.records.description import without_value
from herringbone.records.index import JobRecord
from herringbone.system.sizes import shown_bytes
from herringbone.system.times import shown_span
from herringbone_contract.masking import printable

_MAX_STACKS = 5
_MAX_FRAMES = 100
_MAX_GROUPS = 64
_MAX_TEXT = 500


class Happening(NamedTuple):
    """Something that happened to a job; `time` is in seconds since 1970."""

    time: float
    kind: str
    text: str


def seen(view: JobView) -> Iterator[Happening]:
    """Yield what the events of a job say, the first one of each kind first.

    >>> view = JobView().take_all([{"kind": "straggler", "t": 1.0, "rank": 3, "seconds": 0.5, "median": 0.25}])
    >>> [one.text for one in seen(view)]
    ['rank 3 takes 0.5 s a step, the others 0.25 s: 2.0 times as long']
    """
    changes = *view.states, *view.restarts, *view.stops, *view.checkpoints, *view.removals
    for event in (*changes, *view.stragglers, *view.hangs, *view.faults, *view.idles):
        yield Happening(event.t, event.__struct_config__.tag, _short(text_of(event)))  # type: ignore[arg-type]


def happenings(record: JobRecord, view: JobView) -> list[Happening]:
    """Return what happened, the first first; the job's row knows what its events do not."""
    found = list(seen(view))
    if not view.states:
        # The job is older than its events: the row knows these moments.
        moments = ((record.created, "Created"), (record.started, "Training"), (record.ended, record.status))
        found += [Happening(time, "state", text) for time, text in moments if time is not None]
    definitions = record.plan_dict.get("options", {}).get("metric_definitions") or ()
    if record.done and (missing := without_value(definitions, {key[0] for key in view.series})):
        text = f"metric_definitions found no number for {', '.join(missing)}"
        found.append(Happening(record.ended or record.created, "metrics", _short(text)))
    return sorted(found, key=lambda happening: happening.time)


def text_of(event: State | Restart | Stop | Checkpoint | Removed | Straggler | Hang | Fault | Idle) -> str:
    """Return one thing that happened, in a sentence."""
    match event:
        case State():
            return _sentence(event.state, event.why)
        case Restart():
            return _sentence(f"attempt {event.attempt}", event.why)
        case Stop():
            result = f"saved {event.saved}" if event.saved else "ended without a new checkpoint"
            seconds, grace = shown_span(event.seconds), shown_span(event.grace)
            return f"asked to go by {event.why}: {result} {seconds} after the notice, of a grace of {grace}"
        case Checkpoint():
            return event.path if event.bytes is None else f"{event.path}, {shown_bytes(event.bytes)}"
        case Removed():
            return f"{event.path}, because {event.successor} is whole"
        case Idle():
            return event.what or "none of its devices is used"
        case Fault():
            place = "" if event.rank is None else f" of rank {event.rank}"
            return _sentence(f"{event.fault.replace('_', ' ')}{place}", event.why)
        case Straggler():
            place = f"rank {event.rank}" + (f" on {event.host}" if event.host else "")
            if not event.seconds or not event.median:
                return _sentence(f"{place} is slower than the others", event.why)
            times = f"{event.seconds / event.median:.1f} times as long"
            return _sentence(
                f"{place} takes {event.seconds:.3g} s a step, the others {event.median:.3g} s: {times}", event.why
            )
    wait = "" if event.since is None else f" for {shown_span(event.since)}"
    odd = ", ".join(map(str, event.ranks[:_MAX_GROUPS]))
    who = f"; the odd {'one is rank' if len(event.ranks) == 1 else 'ones are ranks'} {odd}" if odd else ""
    return _sentence(f"nothing has moved{wait}{who}", event.why)


def stacks_data(events: Iterable[Stacks]) -> list[dict[str, Any]]:
    """Return the newest dumps of stacks as JSON values; ranks with equal stacks are one group, the odd group first."""
    dumps = [{"t": one.t, "why": _short(one.why or ""), "groups": [*map(_group, one.groups)]} for one in events]
    return [dump for dump in dumps if dump["groups"]][-_MAX_STACKS:]


def _group(group: StackGroup) -> dict[str, Any]:
    return {
        "ranks": group.ranks,
        "state": _short(" ".join(filter(None, (group.state, group.why)))),
        "text": "\n".join(map(_short, group.frames[:_MAX_FRAMES])),
    }


def _sentence(what: str, why: str | None) -> str:
    return f"{what}: {why}" if why else what


def _short(text: str) -> str:
    return printable(text)[:_MAX_TEXT]
