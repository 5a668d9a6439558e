"""The timeline of one pipeline step, measured and predicted, for the page. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from herringbone.show.thin import number, rounded
from herringbone_contract.events.format import Event
from herringbone_contract.masking import printable

_MAX_SPANS = 5_000
# Of each step there are events of all ranks.
_MAX_STEPS = 3
_MAX_EVENTS = 1_000


class Timelines:
    """The timelines of the newest steps; the events of all ranks of a step are one timeline.

    >>> timelines = Timelines()
    >>> for rank in (0, 1):
    ...     span = ["forward", 0, rank, 0.0, 1.0]
    ...     timelines.take({"kind": "timeline", "step": 7, "since": 10.0 + rank, "rank": rank, "spans": [span]})
    >>> timelines.newest()["spans"]
    [['forward', 0, 0, 0.0, 1.0], ['forward', 0, 1, 1.0, 2.0]]
    """

    def __init__(self) -> None:
        self._steps: dict[object, list[Event]] = {}

    def take(self, event: Event) -> None:
        """Add a `timeline` event of one rank."""
        step = event.get("step")
        events = self._steps.setdefault(step if isinstance(step, int) else None, [])
        if len(events) < _MAX_EVENTS:
            events.append(event)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]

    def newest(self) -> Event | None:
        """Return the newest step that most ranks have sent, as one event whose spans have one origin."""
        if not self._steps:
            return None
        # Of the last step some ranks may still be missing.
        step, events = max(reversed(list(self._steps.items())), key=lambda item: len(item[1]))
        origins = [number(event.get("since")) or 0.0 for event in events]
        first = min(origins)
        spans = [
            [*span[:3], span[3] + origin - first, span[4] + origin - first]
            for event, origin in zip(events, origins, strict=True)
            for span in _spans(event.get("spans"))
        ]
        bubbles = [bubble for event in events if (bubble := number(event.get("bubble"))) is not None]
        joined = {
            "kind": "timeline",
            "step": step,
            "spans": spans,
            "predicted": next((event["predicted"] for event in events if event.get("predicted")), None),
        }
        return {**joined, "bubble": sum(bubbles) / len(bubbles)} if bubbles else joined


def timeline_data(event: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the step, its spans from time 0, its bubble and the predicted ones; None without a timeline.

    >>> spans = [["forward", 0, 0, 5.0, 6.0], ["forward", 0, 1, 6.0, 7.0]]
    >>> timeline_data({"kind": "timeline", "step": 3, "spans": spans})["measured"]
    {'spans': [['forward', 0, 0, 0.0, 1.0], ['forward', 0, 1, 1.0, 2.0]], 'bubble': 0.5}

    A span is [what, microbatch, partition, start, end]. The bubble is the part of the step in which a partition idles,
    on average; the event may name it.
    """
    if not isinstance(event, Mapping):
        return None
    measured = _part(event)
    if measured is None:
        return None
    predicted = event.get("predicted")
    step = event.get("step")
    return {
        "step": step if isinstance(step, int) else None,
        "measured": measured,
        "predicted": _part(predicted) if isinstance(predicted, Mapping) else None,
    }


def _part(source: Mapping[str, Any]) -> dict[str, Any] | None:
    spans = list(_spans(source.get("spans")))
    bubble = number(source.get("bubble"))
    if not spans:
        return None if bubble is None else {"spans": [], "bubble": rounded(bubble)}
    origin = min(span[3] for span in spans)
    moved = [[*span[:3], round(span[3] - origin, 6), round(span[4] - origin, 6)] for span in spans]
    return {"spans": moved, "bubble": rounded(bubble if bubble is not None else _bubble(moved))}


def _spans(raw: object) -> Iterable[list[Any]]:
    if not isinstance(raw, (list, tuple)):
        return
    for span in raw[:_MAX_SPANS]:
        if not isinstance(span, (list, tuple)) or len(span) != 5:
            continue
        what, microbatch, partition = span[:3]
        start, end = number(span[3]), number(span[4])
        if start is None or end is None or not math.isfinite(start) or not math.isfinite(end) or end < start:
            continue
        if type(microbatch) is int and type(partition) is int and 0 <= partition < 1_000:
            yield [printable(str(what))[:40], microbatch, partition, start, end]


def _bubble(spans: list[list[Any]]) -> float | None:
    length = max(span[4] for span in spans)
    partitions = len({span[2] for span in spans})
    busy = sum(span[4] - span[3] for span in spans)
    return max(0.0, 1 - busy / (length * partitions)) if length > 0 else None
