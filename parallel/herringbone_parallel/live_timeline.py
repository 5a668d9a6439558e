"""Note this rank's part of each pipeline step, and send that of one in a thousand to the job's events, for its page."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from herringbone_contract.events import emit
from herringbone_contract.events.steps import count, entered, is_heard
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT
from herringbone_parallel.core.pipeline.simulate import Segment, simulate

# The first steps compile and allocate, so they are not typical.
_FIRST, _EVERY = 10, 1000
# So many spans fit into one event of a rank; more are sent in several.
_SPANS = 80
# A step with more is not simulated, which would take longer than some milliseconds.
_MOST_TASKS = 2000

Span = tuple[str, int, int, float, float]


class LiveTimeline:
    """The stretches of work of this rank in one step.

    live = LiveTimeline.of_step(step, partition=1)
    if live is not None:
        live.note("forward", microbatch, start_s, end_s)            # by time.monotonic()
        live.send(predicted=None)
    """

    def __init__(self, step: int, partition: int) -> None:
        self.step, self._partition = step, partition
        self._spans: list[Span] = []

    @classmethod
    def of_step(cls, step: int, partition: int) -> LiveTimeline | None:
        """Return the timeline of a step that somebody will look at, else None."""
        return cls(step, partition) if (step == _FIRST or step % _EVERY == 0) and is_heard() else None

    def note(self, phase: str, microbatch: int, start_s: float, end_s: float) -> None:
        """Add a stretch of work."""
        self._spans.append((phase, microbatch, self._partition, start_s, end_s))

    def send(self, *, pipeline: str, active: int, partitions: int) -> None:
        """Send the stretches; the first partition also sends the bubble that the schedule predicts."""
        bubble = None
        if self._partition == 0:
            bubble = predicted_bubble(self._spans, pipeline=pipeline, active=active, partitions=partitions)
        for event in timeline_events(self.step, self._spans, time.time() - time.monotonic(), bubble):
            emit.emit("timeline", **event)


class StageWork:
    """The time that this rank needs for its stage of one step, from which the job finds slow ranks.

    Ranks of one stage do the same work: the time at which one would have ended it, had it not waited since its last
    optimizer step, is compared between the replicas. Stages differ in their work. A pipeline without replicas therefore
    compares the times at which its ranks come to the step, and not what they compute in it.
    """

    # Since the optimizer step of this number.
    _idle_s, _count = 0.0, 0

    def __init__(self, step: int, partition: int, replicas: int) -> None:
        self._step, self._partition, self._replicas = step, partition, replicas
        self._began, self._busy_s = time.time(), 0.0

    @classmethod
    def of_step(cls, step: int, partition: int, replicas: int) -> StageWork | None:
        """Return the work of a step, None where nobody listens."""
        return cls(step, partition, replicas) if is_heard() else None

    def note(self, _phase: object, _microbatch: int, start_s: float, end_s: float) -> None:
        """Add a stretch of work."""
        self._busy_s += end_s - start_s

    def end(self) -> None:
        """Note the end of the step."""
        group, moment = "pipeline", self._began
        if self._replicas > 1:
            now, steps = time.time(), count()
            before = StageWork._idle_s if steps == StageWork._count else 0.0
            StageWork._idle_s, StageWork._count = before + now - self._began - self._busy_s, steps
            group, moment = f"stage {self._partition}", now - StageWork._idle_s
        entered.append((int(moment * 1e9), group, self._step))


def timeline_events(step: int, spans: Sequence[Span], wall_s: float, bubble: float | None) -> list[dict[str, Any]]:
    """Return the members of the events of one step on one rank. Pure.

    >>> timeline_events(10, [("forward", 0, 1, 5.0, 5.25)], 100.0, None)
    [{'step': 10, 'since': 105.0, 'spans': [['forward', 0, 1, 0.0, 0.25]]}]

    `wall_s` is the time since 1970 minus that of the spans. Spans count from `since`, the same in all events.
    """
    if not spans:
        return []
    begin = min(start for *_, start, _ in spans)
    rows = [
        [phase, microbatch, partition, round(start - begin, 6), round(end - begin, 6)]
        for phase, microbatch, partition, start, end in spans
    ]
    members: dict[str, Any] = {"step": step, "since": begin + wall_s}
    if bubble is not None:
        members["predicted"] = {"bubble": bubble}
    return [{**members, "spans": rows[index : index + _SPANS]} for index in range(0, len(rows), _SPANS)]


def predicted_bubble(spans: Sequence[Span], *, pipeline: str, active: int, partitions: int) -> float | None:
    """Return the idle fraction of the schedule if all partitions take as long as the one of these spans. Pure.

    >>> spans = [(phase, microbatch, 0, 0.0, 1.0) for microbatch in range(2) for phase in ("forward", "backward")]
    >>> round(predicted_bubble(spans, pipeline="simple", active=2, partitions=2), 2)
    0.33

    None for a step that computes nothing, or is too large to be simulated.
    """
    seconds: dict[str, float] = defaultdict(float)
    for phase, _, _, start, end in spans:
        seconds[phase] += end - start
    count = len({microbatch for _, microbatch, *_ in spans})
    if not count or not sum(seconds.values()) or count * partitions * 2 > _MOST_TASKS:
        return None
    forward_s, backward_s, weight_s = (seconds[phase] / count for phase in (FORWARD, BACKWARD, WEIGHT))
    program = [Segment(rank, forward_s, backward_s + weight_s, weight_s) for rank in range(partitions)]
    idle = simulate([program] * count, pipeline=pipeline, active=active).idle
    return round(sum(idle) / len(idle), 4)
