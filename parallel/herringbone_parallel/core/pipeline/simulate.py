"""Simulates one step of a pipeline, with the runtimes' own schedules, a heap of events, and no real clock.

    stages = [Segment(rank=rank, forward_s=0.01, backward_s=0.02, sent_bytes=65536) for rank in range(4)]
    simulation = simulate([stages] * 8, pipeline="interleaved", active=6, link=Link(latency_s=1e-4, bytes_per_s=1e9))
    simulation.step_s, simulation.idle, simulation.peak_live

A program is the way of one microbatch: its segments in the order of its Python, each on a rank, any rank any number of
times. The rules are those of the runtimes:

[1] Every rank runs every microbatch. On a rank a microbatch is fresh, then in a phase, then ended. A rank runs one
    microbatch at a time, and asks its schedule whenever the running one must wait, changes phase or ends.
[2] A fresh microbatch may start at any time; it then waits for its first message, if it needs one.
[3] A microbatch whose next segment can run at once runs it without asking the schedule.
[4] Microbatches pass the same segment of a rank in the order of their numbers.
[5] The data of a segment leaves when the segment ends. Each directed pair of ranks is a link that carries one message
    at a time.
[6] Ranks on one host without GPUs share its cores: with more running ranks than cores, all of them run slower.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, PHASES, WEIGHT
from herringbone_parallel.core.pipeline.simulated_rank import Rank, Runner, Task, Way
from herringbone_parallel.core.pipeline.trace import Event, idle_fractions, span_s


@dataclass(frozen=True, slots=True)
class Segment:
    """The work of one microbatch on one rank before it goes on to another rank.

    `backward_s` is the whole backward. `weight_s` is its part for the gradients of parameters, which `zero_bubble`
    runs later. `sent_bytes` go to the next segment's rank, and a gradient of the same size comes back. `kept_bytes` are
    held from the start of the forward to the end of the last phase.
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
    """The link between two ranks, in each direction: latency in seconds, bandwidth in bytes per second."""

    latency_s: float = 0.0
    bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if self.latency_s < 0 or self.bytes_per_s <= 0:
            raise ParallelError(f"{self}: a link needs latency_s >= 0 and bytes_per_s > 0")


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulated step; the tuples are indexed by rank.

    `idle` is the fraction of the step in which the rank ran nothing. `peak_live` is the largest number of microbatches
    that had begun to compute and not ended. `peak_kept_bytes` are the most bytes held for backwards at once.
    """

    events: tuple[tuple[Event, ...], ...]
    step_s: float
    idle: tuple[float, ...]
    peak_live: tuple[int, ...]
    peak_kept_bytes: tuple[int, ...]


Program = Sequence[Segment]


def simulate(
    programs: Sequence[Program], *, pipeline: str, active: int, link: Link | None = None, cores: float = math.inf
) -> Simulation:
    """Simulate one step of the microbatches' programs under the schedule that `pipeline` names.

    >>> stages = [Segment(rank, forward_s=1, backward_s=1) for rank in range(2)]
    >>> simulate([stages] * 3, pipeline="interleaved", active=4).step_s
    8.0

    `active` limits the live microbatches of a rank. `cores` is the number of ranks that can run at full speed at once
    [6]. Raises `ParallelError` for an unknown pipeline, for no microbatch, for `active` < 1 and for no cores.
    """
    if not programs or active < 1:
        raise ParallelError(f"a step of {len(programs)} microbatches, {active} of them active: both must be at least 1")
    if cores <= 0:
        raise ParallelError(f"{cores} cores for the ranks of a pipeline: at least a part of one is needed")
    return _Step(programs, pipeline, active, link or Link(), cores).run()


class _Cores:
    """The cores that running tasks share in equal parts [6]; time passes only in `advance`."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._now_s = 0.0
        # The work that one running task has done since the start, in seconds of a core of its own. All tasks run at the
        # same speed, so a task ends when this clock reaches its start plus its duration.
        self._work_s = 0.0
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def start(self, duration_s: float, finish: Callable[[], None]) -> None:
        heapq.heappush(self._ends, (self._work_s + duration_s, next(self._numbers), finish))

    @property
    def _speed(self) -> float:
        return min(1.0, self._cores / len(self._ends))

    @property
    def next_end_s(self) -> float:
        """The time at which the first running task ends if no other one starts; infinite when none runs."""
        if not self._ends:
            return math.inf
        return self._now_s + (self._ends[0][0] - self._work_s) / self._speed

    def advance(self, now_s: float) -> list[Callable[[], None]]:
        """Let time pass; return what to call for each task that ends at `now_s`."""
        ended = []
        if self._ends:
            last = now_s >= self.next_end_s
            # Without a sum of rounded parts, the first end is exact.
            self._work_s = self._ends[0][0] if last else self._work_s + (now_s - self._now_s) * self._speed
            while last and self._ends and self._ends[0][0] <= self._work_s:
                ended.append(heapq.heappop(self._ends)[2])
        self._now_s = now_s
        return ended


class _Step:
    """The state of one simulated step."""

    def __init__(self, programs: Sequence[Program], pipeline: str, active: int, link: Link, cores: float) -> None:
        self._programs = programs
        self._link = link
        # Without a limit, all events share one heap, whose order decides between events of the same time.
        self._cores = None if math.isinf(cores) else _Cores(cores)
        self._now_s = 0.0
        # (time, number, action). The number breaks ties of time, so that the earlier entry runs first and the heap
        # never compares two actions.
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._link_free_at: dict[tuple[int, int], float] = defaultdict(float)
        # `make_schedule` below refuses an unknown pipeline and names the choices.
        phases = PHASES.get(pipeline, ())
        self._last_phase = phases[-1] if phases else ""
        # Only a step with a backward keeps activations.
        self._keeps = len(phases) > 1
        # A rank below the highest may have no segment; it counts as idle.
        ranks = 1 + max((segment.rank for program in programs for segment in program), default=0)
        # Most steps have one program for all microbatches.
        known = {id(program): program for program in programs}
        ways = {
            key: [Way.of([segment.rank for segment in program], rank, phases) for rank in range(ranks)]
            for key, program in known.items()
        }
        self._ranks = [
            Rank([Runner(m, ways[id(program)][rank]) for m, program in enumerate(programs)], pipeline, active)
            for rank in range(ranks)
        ]

    def run(self) -> Simulation:
        for microbatch, program in enumerate(self._programs):
            if program:
                # The first segment works on the step's own arguments, so its message is there from the start.
                self._deliver(program[0].rank, microbatch, Task(FORWARD, 0))
        self._start_idle_ranks()
        while (now_s := self._next_event_s()) < math.inf:
            self._now_s = now_s
            # Handle all events of one time before any rank chooses: a choice must see every message that has arrived.
            if self._cores is not None:
                for finish in self._cores.advance(now_s):
                    finish()
            while self._heap and self._heap[0][0] <= now_s:
                heapq.heappop(self._heap)[2]()
            self._start_idle_ranks()
        stuck = [(r, n.microbatch, n.next) for r, rank in enumerate(self._ranks) for n in rank.runners if n.next]
        # A schedule chooses a microbatch whenever one can run, so work that is left is a bug in a schedule or here.
        assert not stuck, f"the schedules stopped with work left (rank, microbatch, task): {stuck}"
        return self._result()

    def _next_event_s(self) -> float:
        event_s = self._heap[0][0] if self._heap else math.inf
        return event_s if self._cores is None else min(event_s, self._cores.next_end_s)

    def _result(self) -> Simulation:
        events = [event for rank in self._ranks for event in rank.events]
        idle = idle_fractions(events)
        return Simulation(
            events=tuple(tuple(rank.events) for rank in self._ranks),
            step_s=span_s(events),
            idle=tuple(idle.get(rank, 1.0) for rank in range(len(self._ranks))),
            peak_live=tuple(rank.peak_live for rank in self._ranks),
            peak_kept_bytes=tuple(rank.peak_kept_bytes for rank in self._ranks),
        )

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._numbers), action))

    def _start_idle_ranks(self) -> None:
        for rank in self._ranks:
            if rank.changed and not rank.busy and (runner := rank.choose()) is not None:
                self._begin(rank, runner)

    def _begin(self, rank: Rank, runner: Runner) -> None:
        task = runner.next
        assert task is not None
        segment = self._programs[runner.microbatch][task.segment]
        rank.busy = True
        if not runner.begun:
            runner.begun = True
            rank.live += 1
            rank.peak_live = max(rank.peak_live, rank.live)
        # Activations exist from the start of the forward.
        if task.phase == FORWARD and self._keeps:
            rank.kept_bytes += segment.kept_bytes
            rank.peak_kept_bytes = max(rank.peak_kept_bytes, rank.kept_bytes)
        start_s, duration_s = self._now_s, self._duration_s(segment, task.phase)

        def finish() -> None:
            rank.events.append(Event(segment.rank, task.phase, runner.microbatch, start_s, self._now_s))
            self._finish(rank, runner, task)

        if self._cores is None:
            self._at(start_s + duration_s, finish)
        else:
            self._cores.start(duration_s, finish)

    def _finish(self, rank: Rank, runner: Runner, task: Task) -> None:
        program = self._programs[runner.microbatch]
        rank.end_task(runner)
        # The weight phase, if there is one, still needs the activations after the backward.
        if task.phase == self._last_phase and self._keeps:
            rank.kept_bytes -= program[task.segment].kept_bytes
        # Deliver first: the next task may need what this one made.
        self._pass_on(runner.microbatch, task)
        # [3]; but a change of phase asks the schedule [1].
        if runner.next is not None and runner.next.phase == task.phase and rank.can_run(runner):
            self._begin(rank, runner)

    def _pass_on(self, microbatch: int, task: Task) -> None:
        """Send the results of a task to the tasks that need them [5]."""
        program = self._programs[microbatch]
        phase, index = task
        if phase == FORWARD and index + 1 < len(program):
            self._send(microbatch, index, Task(FORWARD, index + 1), program[index].sent_bytes)
        elif phase == FORWARD:
            # The last segment computes the loss, so its backward needs no message.
            self._deliver(program[index].rank, microbatch, Task(BACKWARD, index))
        elif phase == BACKWARD:
            # The weight phase needs only what this rank has; the rank before needs the gradient by message.
            self._deliver(program[index].rank, microbatch, Task(WEIGHT, index))
            if index > 0:
                self._send(microbatch, index, Task(BACKWARD, index - 1), program[index - 1].sent_bytes)

    def _send(self, microbatch: int, index: int, task: Task, sent_bytes: int) -> None:
        program = self._programs[microbatch]
        source, target = program[index].rank, program[task.segment].rank
        if source == target:
            self._deliver(target, microbatch, task)
            return
        start_s = max(self._now_s, self._link_free_at[source, target])
        sent_s = start_s + sent_bytes / self._link.bytes_per_s
        # The latency does not occupy the link: the next message may follow while this one is on its way.
        self._link_free_at[source, target] = sent_s
        self._at(sent_s + self._link.latency_s, lambda: self._deliver(target, microbatch, task))

    def _deliver(self, rank: int, microbatch: int, task: Task) -> None:
        self._ranks[rank].receive(self._ranks[rank].runners[microbatch], task)

    def _duration_s(self, segment: Segment, phase: str) -> float:
        if phase == FORWARD:
            return segment.forward_s
        if phase == WEIGHT:
            return segment.weight_s
        # Without a weight phase, the backward computes all gradients.
        return segment.backward_s - segment.weight_s if self._last_phase == WEIGHT else segment.backward_s
