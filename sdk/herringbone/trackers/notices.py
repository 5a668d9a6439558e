"""Turn a job's events into the notices that people get: one sentence each, and each once. Pure.

    state       ended, or failed with its culprit (`end`, once the job's row says so)
    restart     restarted
    hang        hung: once for each standstill, however often it is reported
    idle        idle: when half of the limit is over, and at the limit
    straggler   straggling: once for each rank of an attempt
    fault       fault: once for each kind and attempt, such as a loss that is no number
    bill        budget: four fifths of `max_cost` are spent (`tick`)
    progress    late: the job's own estimate, or its time so far, is beyond its prediction or its limit (`tick`)

A notice's id follows from what happened, not from when somebody looked. So a process that begins again, and reads all
events once more, leaves out what was sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from herringbone.events.comparison import prediction_of
from herringbone.events.happenings import text_of
from herringbone.events.kinds import Fault, Hang, Idle, Progress, Restart, State, Straggler, decode
from herringbone.plan.budget import dollars, shown_dollars
from herringbone.plan.notify import KINDS
from herringbone.plan.options.typed import DAY_SECONDS
from herringbone.records.index import COMPLETED, FAILED, TRAINING
from herringbone.records.job_events import Held
from herringbone.records.state_lines import why_of
from herringbone.system.times import shown_span
from herringbone.trackers.facts import JobFacts
from herringbone_contract.events.format import Event

# A job whose ranks take turns in being slow fills no mailbox; its end is always told.
MAX_NOTICES = 100
# The part of a budget whose end is told.
_TOLD_PART = 0.8
# An estimate at the beginning of a job is rough.
_LEAST_FRACTION = 0.05


class Notice(NamedTuple):
    """Something that people want to know; `time` is in seconds since 1970."""

    id: str
    kind: str
    time: float
    text: str


class Notices:
    """The notices of one job, of the kinds that a destination wants; `rows` are those of an earlier process.

    >>> notices = Notices({}, created=0.0)
    >>> event = {"kind": "restart", "t": 9.0, "attempt": 2, "why": "algo-2 was lost"}
    >>> notices.take(event), notices.take(event)
    ([Notice(id='restarted-2', kind='restarted', time=9.0, text='attempt 2: algo-2 was lost')], [])

    `plan` is that of the job's row.
    """

    # Each is noted as sent before the next one is sent.
    batch = 1
    left_out = 0

    def __init__(
        self,
        plan: Mapping[str, Any],
        *,
        created: float,
        kinds: Collection[str] = KINDS,
        rows: Iterable[list[Any]] = (),
    ) -> None:
        self._kinds, self._created = kinds, created
        self._known: dict[str, None] = {str(row[0]): None for row in rows if row}
        prediction = prediction_of(plan)
        self._predicted = None if prediction is None else prediction.seconds
        options = plan.get("options", {})
        self._limit = float(options.get("max_run", DAY_SECONDS))
        self._hourly, self._max_cost = plan.get("hourly_cost"), options.get("max_cost")
        self._started: float | None = None
        self._held = Held()
        self._attempt, self._idles, self._hangs, self._hung_at = 1, 0, 0, float("-inf")
        self._progress: Progress | None = None

    def take(self, event: Event) -> list[Notice]:
        """Return the notice of one event, if it is news."""
        match decode(event):
            case State(state=state, t=time):
                self._held.take(state, time)
                if state == TRAINING and self._started is None:
                    self._started = time
            case Progress() as progress:
                self._progress = progress
            case Restart() as restart:
                # What it has estimated before is no news of this attempt.
                self._attempt, self._progress = restart.attempt, None
                return self._new(f"restarted-{restart.attempt}", "restarted", restart.t, text_of(restart))
            case Straggler() as slow:
                place = f"straggling-{self._attempt}-{slow.rank}"
                return self._new(place, "straggling", slow.t, text_of(slow))
            case Idle() as idle:
                if not idle.seconds:
                    # Devices are used again.
                    return []
                self._idles += not idle.ends
                return self._new(f"idle-{self._idles}{'-end' * idle.ends}", "idle", idle.t, text_of(idle))
            case Fault() as fault:
                return self._new(f"{fault.fault}-{self._attempt}", "fault", fault.t, text_of(fault))
            case Hang() as hang:
                # A longer wait of the same standstill is no news.
                if hang.t - (hang.since or 0.0) > self._hung_at:
                    self._hangs += 1
                self._hung_at = hang.t
                return self._new(f"hung-{self._hangs}", "hung", hang.t, text_of(hang))
        return []

    def tick(self, now: float) -> list[Notice]:
        """Return a notice that time alone makes; call again until there is none."""
        if self._started is None:
            return []
        whole = now - self._created + self._left(now)
        if self._predicted is not None and whole > self._predicted.high:
            text = f"it takes {shown_span(whole)} or more, and {shown_span(self._predicted.expected)} were predicted"
            if late := self._new("late", "late", now, text):
                return late
        if self._hourly and self._max_cost:
            spent = dollars(self._hourly, self._held.seconds(now))
            text = (
                f"{shown_dollars(spent)} of {shown_dollars(self._max_cost)} (max_cost) are spent; it is stopped in "
                f"{shown_span((self._max_cost - spent) / self._hourly * 3600)}"
            )
            if _TOLD_PART <= spent / self._max_cost < 1 and (budget := self._new("budget", "budget", now, text)):
                return budget
        if (needed := now - self._started + self._left(now)) > self._limit and self._left(now):
            text = f"by its progress it needs {shown_span(needed)}, and it is stopped after {shown_span(self._limit)}"
            return self._new("late-limit", "late", now, text)
        return []

    def end(self, facts: JobFacts) -> list[Notice]:
        """Return the notice of the job's end."""
        time = facts.ended or facts.created
        took = "" if self._started is None else f" after {shown_span(time - self._started)}"
        if facts.status == FAILED:
            return self._new("end", "failed", time, f"failed{took}: {facts.own_tags.get('failure', 'no reason known')}")
        columns = {"status": facts.status, "secondary_status": facts.own_tags.get("state", facts.status)}
        what = "completed" if facts.status == COMPLETED else f"stopped: {why_of(columns)}"
        return self._new("end", "ended", time, f"{what}{took}")

    def rows(self) -> list[list[Any]]:
        """Return what to store once the notices so far are sent."""
        return [[name] for name in self._known]

    def _left(self, now: float) -> float:
        """Return the seconds until the end by the job's own estimate; 0 without one."""
        progress = self._progress
        if progress is None or progress.eta is None or (progress.fraction or 0.0) < _LEAST_FRACTION:
            return 0.0
        return max(0.0, progress.eta - max(0.0, now - progress.time))

    def _new(self, name: str, kind: str, time: float, text: str) -> list[Notice]:
        is_flood = len(self._known) >= MAX_NOTICES and name != "end"
        if kind not in self._kinds or name in self._known or is_flood:
            return []
        self._known[name] = None
        return [Notice(name, kind, time, text)]
