"""A pipelined step in simulated time: the runtime's own schedule generators, driven by a heap of events and no clock.

    stages = [Segment(rank=rank, forward_s=0.01, backward_s=0.02, sent_bytes=65536) for rank in range(4)]
    found = simulate([stages] * 8, pipeline="interleaved", active=6, link=Link(latency_s=1e-4, bytes_per_s=1e9))
    found.step_s, found.idle, found.peak_live

A program is the way of one microbatch: segments in the order of its Python, each on a rank, any rank any number of
times. Rules, those of the runtime:

[1] Every rank goes through every microbatch. On a rank a microbatch is fresh, then in a phase, then ended; a rank runs
    one at a time, and asks its schedule whenever the one that ran must wait, changes phase or ends.
[2] A fresh one may start at any time; it then waits for its first message, if there is one to wait for.
[3] What is here already is taken at once: one that goes on to its next segment does so without asking the schedule.
[4] Microbatches go through the same visit of a rank in the order of their numbers.
[5] The data of a segment leaves when it ends. Each directed pair of ranks is a link that carries one message at a time.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, PHASES, WEIGHT, Ready, make_schedule
from herringbone_parallel.core.pipeline.trace import Event, idle_fractions, span_s


@dataclass(frozen=True, slots=True)
class Segment:
    """What one microbatch computes on one rank before it goes on to another.

    `backward_s` is the whole backward; `weight_s` is the part of it that gives the gradients of parameters, which
    `zero_bubble` puts off. `sent_bytes` go to the next segment's rank, and as many come back as its gradient.
    `kept_bytes` are held from the start of the forward until nothing more needs them.
    """

    rank: int
    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    sent_bytes: int = 0
    kept_bytes: int = 0

    def __post_init__(self) -> None:
        numbers = (self.rank, self.forward_s, self.backward_s, self.weight_s, self.sent_bytes, self.kept_bytes)
        if min(numbers) < 0 or self.weight_s > self.backward_s:
            raise ParallelError(
                f"{self}: ranks, seconds and bytes are not negative, and weight_s ({self.weight_s}) is a part of"
                f" backward_s ({self.backward_s}). Measure the segment again."
            )


@dataclass(frozen=True, slots=True)
class Link:
    """What carries messages between two ranks, each way by itself: latency in seconds, bandwidth in bytes a second."""

    latency_s: float = 0.0
    bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.bytes_per_s <= 0:
            raise ParallelError(f"{self}: a link needs latency_s >= 0 and bytes_per_s > 0")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated step came to; the tuples are indexed by rank.

    `peak_live` is the most microbatches that had begun to compute and had not ended; `peak_kept_bytes` the most bytes
    held for backwards at once.
    """

    events: tuple[tuple[Event, ...], ...]
    step_s: float
    idle: tuple[float, ...]
    peak_live: tuple[int, ...]
    peak_kept_bytes: tuple[int, ...]


Program = Sequence[Segment]

_ORDER = {phase: index for index, phase in enumerate((FORWARD, BACKWARD, WEIGHT))}


def simulate(programs: Sequence[Program], *, pipeline: str, active: int, link: Link | None = None) -> Simulation:
    """Run one step of the microbatches' programs, in the order of the schedule that `pipeline` names.

    >>> stages = [Segment(rank, forward_s=1, backward_s=1) for rank in range(2)]
    >>> simulate([stages] * 3, pipeline="interleaved", active=4).step_s
    8.0

    Raises `ParallelError` for an unknown pipeline, for no microbatch, and for `active` < 1.
    """
    if not programs or active < 1:
        raise ParallelError(f"a step of {len(programs)} microbatches, {active} of them active: both must be at least 1")
    return _Step(programs, pipeline, active, link or Link()).run()


class _Visit(NamedTuple):
    """One piece of work: a segment of a microbatch's program, in one phase."""

    phase: str
    place: int


class _Runner:
    """One microbatch on one rank: the work it has there, and how far it is."""

    __slots__ = ("_turns", "begun", "mail", "microbatch", "passed", "started", "work")

    def __init__(self, microbatch: int, work: Sequence[_Visit]) -> None:
        self.microbatch = microbatch
        self.work = work
        self._turns = [(_ORDER[at.phase], sum(w.phase == at.phase for w in work[:i])) for i, at in enumerate(work)]
        self.passed = 0
        self.started = False
        # Whether it has begun to compute; one that has only started may still wait for its first message.
        self.begun = False
        self.mail: set[_Visit] = set()

    @property
    def next(self) -> _Visit | None:
        return self.work[self.passed] if self.passed < len(self.work) else None

    def has_turn_after(self, before: _Runner) -> bool:
        """Say whether the microbatch before is past this one's next work: its phase, or its count within it [4]."""
        return before.next is None or before._turns[before.passed] > self._turns[self.passed]


class _Rank:
    """One rank: its runners, and what its memory holds."""

    def __init__(self, runners: Sequence[_Runner], pipeline: str, active: int) -> None:
        self.runners = runners
        self.schedule = make_schedule(pipeline, active=active)
        self.busy = False
        self.events: list[Event] = []
        self.live = self.peak_live = 0
        self.kept_bytes = self.peak_kept_bytes = 0

    def able(self, runner: _Runner) -> bool:
        """Say whether the runner's next work has what it needs: its message, and its turn [4]."""
        visit = runner.next
        if visit is None or visit not in runner.mail:
            return False
        return runner.microbatch == 0 or runner.has_turn_after(self.runners[runner.microbatch - 1])

    def ready(self) -> Ready:
        able: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], WEIGHT: []}
        fresh, live, forwards_left = [], 0, 0
        for runner in self.runners:
            visit = runner.next
            if visit is None:
                continue
            forwards_left += visit.phase == FORWARD
            live += runner.started
            if not runner.started:
                fresh.append(runner.microbatch)
            elif self.able(runner):
                able[visit.phase].append(runner.microbatch)
        return Ready(
            forward=tuple(able[FORWARD]),
            backward=tuple(able[BACKWARD]),
            fresh=tuple(fresh),
            live=live,
            forwards_left=forwards_left,
            weight=tuple(able[WEIGHT]),
        )

    def choose(self) -> _Runner | None:
        """Return the runner that the schedule names and that can compute; start those that cannot on the way [2]."""
        while (choice := self.schedule(self.ready())) is not None:
            runner = self.runners[choice]
            runner.started = True
            if self.able(runner):
                return runner
        return None


class _Step:
    """The state of one simulated step."""

    def __init__(self, programs: Sequence[Program], pipeline: str, active: int, link: Link) -> None:
        self._programs = programs
        self._link = link
        self._now = 0.0
        # (when, in the order of planning, what): planned for the same time, first planned is first done.
        self._plan: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._link_free_at: dict[tuple[int, int], float] = defaultdict(float)
        phases = PHASES.get(pipeline, ())
        self._last_phase = phases[-1] if phases else ""
        self._keeps = len(phases) > 1
        ranks = 1 + max((segment.rank for program in programs for segment in program), default=0)
        self._ranks = [
            _Rank([_Runner(m, _work(program, rank, phases)) for m, program in enumerate(programs)], pipeline, active)
            for rank in range(ranks)
        ]

    def run(self) -> Simulation:
        for microbatch, program in enumerate(self._programs):
            if program:
                self._deliver(program[0].rank, microbatch, _Visit(FORWARD, 0))
        self._ask_idle()
        while self._plan:
            self._now = self._plan[0][0]
            # All that happens at one time happens before anyone chooses.
            while self._plan and self._plan[0][0] == self._now:
                heapq.heappop(self._plan)[2]()
            self._ask_idle()
        stuck = [(r, n.microbatch, n.next) for r, rank in enumerate(self._ranks) for n in rank.runners if n.next]
        assert not stuck, f"the schedules stopped with work left (rank, microbatch, work): {stuck}"
        return self._result()

    def _result(self) -> Simulation:
        everything = [event for rank in self._ranks for event in rank.events]
        idle = idle_fractions(everything)
        return Simulation(
            events=tuple(tuple(rank.events) for rank in self._ranks),
            step_s=span_s(everything),
            idle=tuple(idle.get(rank, 1.0) for rank in range(len(self._ranks))),
            peak_live=tuple(rank.peak_live for rank in self._ranks),
            peak_kept_bytes=tuple(rank.peak_kept_bytes for rank in self._ranks),
        )

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plan, (when, next(self._order), what))

    def _ask_idle(self) -> None:
        for rank in self._ranks:
            if not rank.busy and (runner := rank.choose()) is not None:
                self._begin(rank, runner)

    def _begin(self, rank: _Rank, runner: _Runner) -> None:
        visit = runner.next
        assert visit is not None
        segment = self._programs[runner.microbatch][visit.place]
        rank.busy = True
        if not runner.begun:
            runner.begun = True
            rank.live += 1
            rank.peak_live = max(rank.peak_live, rank.live)
        if visit.phase == FORWARD and self._keeps:
            rank.kept_bytes += segment.kept_bytes
            rank.peak_kept_bytes = max(rank.peak_kept_bytes, rank.kept_bytes)
        start = self._now
        end = start + self._duration_s(segment, visit.phase)

        def finish() -> None:
            rank.events.append(Event(segment.rank, visit.phase, runner.microbatch, start, end))
            self._finish(rank, runner, visit)

        self._at(end, finish)

    def _finish(self, rank: _Rank, runner: _Runner, visit: _Visit) -> None:
        program = self._programs[runner.microbatch]
        runner.passed += 1
        rank.busy = False
        if visit.phase == self._last_phase and self._keeps:
            rank.kept_bytes -= program[visit.place].kept_bytes
        if runner.next is None:
            rank.live -= 1
        self._pass_on(runner.microbatch, visit)
        # [3]; a change of phase asks the schedule.
        if runner.next is not None and runner.next.phase == visit.phase and rank.able(runner):
            self._begin(rank, runner)

    def _pass_on(self, microbatch: int, visit: _Visit) -> None:
        """Send what the work made to the work that needs it [5]."""
        program = self._programs[microbatch]
        phase, place = visit
        if phase == FORWARD and place + 1 < len(program):
            self._send(microbatch, place, _Visit(FORWARD, place + 1), program[place].sent_bytes)
        elif phase == FORWARD:
            self._deliver(program[place].rank, microbatch, _Visit(BACKWARD, place))
        elif phase == BACKWARD:
            self._deliver(program[place].rank, microbatch, _Visit(WEIGHT, place))
            if place > 0:
                self._send(microbatch, place, _Visit(BACKWARD, place - 1), program[place - 1].sent_bytes)

    def _send(self, microbatch: int, place: int, visit: _Visit, sent_bytes: int) -> None:
        program = self._programs[microbatch]
        source, target = program[place].rank, program[visit.place].rank
        if source == target:
            self._deliver(target, microbatch, visit)
            return
        leaves = max(self._now, self._link_free_at[source, target])
        left = leaves + sent_bytes / self._link.bytes_per_s
        self._link_free_at[source, target] = left
        self._at(left + self._link.latency_s, lambda: self._deliver(target, microbatch, visit))

    def _deliver(self, rank: int, microbatch: int, visit: _Visit) -> None:
        self._ranks[rank].runners[microbatch].mail.add(visit)

    def _duration_s(self, segment: Segment, phase: str) -> float:
        if phase == FORWARD:
            return segment.forward_s
        if phase == WEIGHT:
            return segment.weight_s
        return segment.backward_s - segment.weight_s if self._last_phase == WEIGHT else segment.backward_s


def _work(program: Program, rank: int, phases: Sequence[str]) -> list[_Visit]:
    """Return what a rank does for a microbatch: its segments forwards, then backwards in each later phase."""
    places = [place for place, segment in enumerate(program) if segment.rank == rank]
    return [_Visit(phase, place) for phase in phases for place in (places if phase == FORWARD else places[::-1])]
