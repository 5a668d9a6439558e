"""The single things that happened to a job, in sentences for its page: states, restarts, hangs, checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from herringbone.events.view import JobView
from herringbone.records.description import without_value
from herringbone.records.index import JobRecord
from herringbone.show.thin import number
from herringbone.system.sizes import shown_bytes
from herringbone.system.times import shown_span
from herringbone_contract.events.format import Event
from herringbone_contract.masking import printable

# A page with more would be no overview.
_MAX_OF_KIND = 200
_MAX_STACKS = 5
_MAX_FRAMES = 100
_MAX_GROUPS = 64
_MAX_TEXT = 500


def happenings(record: JobRecord, view: JobView) -> list[dict[str, Any]]:
    """Return what happened, the first first: {t, kind, text}; `t` is in seconds since 1970."""
    found = [{"t": time, "kind": "state", "text": _sentence(state, why)} for time, state, why in view.states]
    if not found:
        # The job is older than its events: the row knows these moments.
        moments = ((record.created, "Created"), (record.started, "Training"), (record.ended, record.status))
        found = [{"t": time, "kind": "state", "text": text} for time, text in moments if time is not None]
    for kind, events in (
        ("restart", view.restarts),
        ("checkpoint", view.checkpoints),
        ("straggler", view.stragglers),
        ("hang", view.hangs),
    ):
        found += [
            {"t": event["t"], "kind": kind, "text": _text_of(kind, event)} for event in list(events)[-_MAX_OF_KIND:]
        ]
    definitions = record.plan_dict.get("options", {}).get("metric_definitions") or ()
    if record.done and (missing := without_value(definitions, {key[0] for key in view.series})):
        text = f"metric_definitions found no number for {', '.join(missing)}"
        found.append({"t": record.ended or record.created, "kind": "metrics", "text": _short(text)})
    return sorted(found, key=lambda happening: happening["t"])


def _text_of(kind: str, event: Event) -> str:
    if isinstance(text := event.get("text"), str) and text:
        return _short(text)
    place = _place(event)
    if kind == "restart":
        return _sentence(f"attempt {event.get('attempt', '?')}", event.get("why"))
    if kind == "checkpoint":
        size = number(event.get("bytes"))
        shown = "" if size is None or not 0 <= size < 1e18 else f", {shown_bytes(int(size))}"
        return f"{_short(event.get('path', '?'))}{shown}"
    if kind == "straggler":
        own, median = number(event.get("seconds")), number(event.get("median"))
        if own is None or median is None or median <= 0:
            return f"{place} is slower than the others"
        return f"{place} takes {own:.3g} s a step, the others {median:.3g} s: {own / median:.1f} times as long"
    quiet = number(event.get("since"))
    wait = "" if quiet is None or not 0 <= quiet < 1e9 else f" for {shown_span(quiet)}"
    odd = [str(_rank(rank)) for rank in _listed(event.get("ranks"))[:_MAX_GROUPS]]
    who = f"; the odd {'one is rank' if len(odd) == 1 else 'ones are ranks'} {', '.join(odd)}" if odd else ""
    return _sentence(f"nothing has moved{wait}{who}", event.get("why"))


def _place(event: Event) -> str:
    rank, host = event.get("rank"), event.get("host")
    if isinstance(rank, int):
        return f"rank {rank}" + (f" on {_short(host)}" if host else "")
    return _short(host) if host else ""


def stacks_data(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the newest dumps of stacks; ranks with equal stacks are one group, and the odd group comes first.

    >>> stacks_data([{"kind": "stacks", "t": 1.0, "ranks": {"0": ["a"], "1": ["b"], "2": ["a"]}}])[0]["groups"]
    [{'ranks': [1], 'state': '', 'text': 'b'}, {'ranks': [0, 2], 'state': '', 'text': 'a'}]

    An event has `groups`, which are folded already, or `ranks`, each with its threads.
    """
    dumps = [{"t": event["t"], "why": _short(event.get("why") or ""), "groups": _groups(event)} for event in events]
    return [dump for dump in dumps if dump["groups"]][-_MAX_STACKS:]


def _groups(event: Event) -> list[dict[str, Any]]:
    if isinstance(groups := event.get("groups"), list):
        return [
            {
                "ranks": [_rank(rank) for rank in _listed(group.get("ranks"))],
                "state": _short(" ".join(str(group[name]) for name in ("state", "why") if group.get(name))),
                "text": _thread_text(_listed(group.get("frames"))),
            }
            for group in groups[:_MAX_GROUPS]
            if isinstance(group, dict)
        ]
    folded: dict[str, list[int | str]] = {}
    for rank, threads in (ranks if isinstance(ranks := event.get("ranks"), dict) else {}).items():
        text = "\n\n".join(_thread_text(thread) for thread in _listed(threads))
        folded.setdefault(text, []).append(_rank(rank))
    groups = sorted(folded.items(), key=lambda group: len(group[1]))[:_MAX_GROUPS]
    return [{"ranks": ranks, "state": "", "text": text} for text, ranks in groups]


def _rank(rank: object) -> int | str:
    return int(text) if (text := str(rank)).isdecimal() else _short(text)


def _thread_text(thread: object) -> str:
    if isinstance(thread, dict):
        frames = "\n".join(_frame_text(frame) for frame in _listed(thread.get("frames"))[:_MAX_FRAMES])
        name = thread.get("name") or thread.get("thread")
        return f"{_short(name)}\n{frames}" if name else frames
    if isinstance(thread, (list, tuple)):
        return "\n".join(_frame_text(frame) for frame in thread[:_MAX_FRAMES])
    return printable(str(thread), "\n\t")[: _MAX_TEXT * 20]


def _frame_text(frame: object) -> str:
    if isinstance(frame, dict):
        return _short(f"  {frame.get('file', '?')}:{frame.get('line', '?')} in {frame.get('function', '?')}")
    if isinstance(frame, (list, tuple)) and len(frame) >= 3:
        return _short(f"  {frame[0]}:{frame[1]} in {frame[2]}")
    return _short(frame)


def _listed(value: object) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple)) else (value,)


def _sentence(what: object, why: object) -> str:
    return _short(f"{what}: {why}" if why else what)


def _short(text: object) -> str:
    return printable(str(text))[:_MAX_TEXT]
