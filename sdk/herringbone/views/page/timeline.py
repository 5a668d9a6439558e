"""The timeline of one pipeline step, measured and predicted, for the page. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from herringbone.events.kinds import Span, Spans, Timeline
from herringbone.show.thin import rounded
from herringbone_contract.masking import printable

_MAX_SPANS = 5_000
# Of each step there are events of all ranks.
_MAX_STEPS = 3
_MAX_EVENTS = 1_000


class Timelines:
    """The timelines of the newest steps; the events of all ranks of a step are one timeline.

    >>> timelines = Timelines()
    >>> for rank in (0, 1):
    ...     timelines.add(Timeline(t=12.0, step=7, since=10.0 + rank, spans=[Span("forward", 0, rank, 0.0, 1.0)]))
    >>> [span.end for span in timelines.newest().spans]
    [1.0, 2.0]
    """

    def __init__(self) -> None:
        self._steps: dict[int | None, list[Timeline]] = {}

    def add(self, event: Timeline) -> None:
        """Add the timeline of one rank."""
        events = self._steps.setdefault(event.step, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]

    def newest(self) -> Timeline | None:
        """Return the newest step that most ranks have sent, as one event whose spans have one origin."""
        if not self._steps:
            return None
        # Of the last step some ranks may still be missing.
        step, events = max(reversed(list(self._steps.items())), key=lambda item: len(item[1]))
        first = min(event.since or 0.0 for event in events)
        bubbles = [event.bubble for event in events if event.bubble is not None]
        return Timeline(
            t=events[-1].t,
            step=step,
            spans=[span for event in events for span in _moved(event.spans, (event.since or 0.0) - first)],
            bubble=sum(bubbles) / len(bubbles) if bubbles else None,
            predicted=next((event.predicted for event in events if event.predicted), None),
        )


def timeline_data(event: Timeline | None) -> dict[str, Any] | None:
    """Return the step, its spans from time 0, its bubble and the predicted ones; None without a timeline.

    >>> spans = [Span("forward", 0, 0, 5.0, 6.0), Span("forward", 0, 1, 6.0, 7.0)]
    >>> timeline_data(Timeline(t=1.0, step=3, spans=spans))["measured"]
    {'spans': [('forward', 0, 0, 0.0, 1.0), ('forward', 0, 1, 1.0, 2.0)], 'bubble': 0.5}

    A span is [what, microbatch, partition, start, end]. The bubble is the part of the step in which a partition idles,
    on average; the event may name it.
    """
    measured = None if event is None else _part(event)
    if event is None or measured is None:
        return None
    predicted = None if event.predicted is None else _part(event.predicted)
    return {"step": event.step, "measured": measured, "predicted": predicted}


def _part(source: Timeline | Spans) -> dict[str, Any] | None:
    spans = [span for span in source.spans[:_MAX_SPANS] if span.end >= span.start]
    if not spans:
        return None if source.bubble is None else {"spans": [], "bubble": rounded(source.bubble)}
    moved = _moved(spans, -min(span.start for span in spans))
    return {
        "spans": [(printable(one.what)[:40], *msgspec.structs.astuple(one)[1:]) for one in moved],
        "bubble": rounded(_bubble(moved) if source.bubble is None else source.bubble),
    }


def _moved(spans: list[Span], by: float) -> list[Span]:
    return [
        Span(one.what, one.microbatch, one.partition, round(one.start + by, 6), round(one.end + by, 6)) for one in spans
    ]


def _bubble(spans: list[Span]) -> float | None:
    length = max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans)
    return max(0.0, 1 - busy / (length * len({span.partition for span in spans}))) if length > 0 else None
