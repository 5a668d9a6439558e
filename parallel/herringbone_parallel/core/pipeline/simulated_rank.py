"""The state of one simulated rank: its microbatches, and which of them can run now.

    rank = Rank([Runner(m, Way.of([0, 1], 0, ("forward", "backward"))) for m in range(2)], "interleaved", active=2)
    rank.receive(rank.runners[0], Task("forward", 0))
    rank.choose()           # the runner of microbatch 0

`simulate` has the clock and the messages. The numbers in brackets are its rules.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD, WEIGHT, Ready, make_schedule
from herringbone_parallel.core.pipeline.trace import Event

_PHASE_ORDER = {phase: index for index, phase in enumerate((FORWARD, BACKWARD, WEIGHT))}


class Task(NamedTuple):
    """One piece of work: a segment of a microbatch's program, by its index there, in one phase."""

    phase: str
    segment: int


class Way(NamedTuple):
    """A program on one rank: its tasks there, and their positions.

    >>> Way.of([0, 1, 0], 0, ("forward", "backward")).positions
    ((0, 0), (0, 1), (1, 0), (1, 1))

    A task's position is its phase and its index within that phase, which is the same for all microbatches that take
    the same way. Microbatches with other programs compare by it as well.
    """

    tasks: tuple[Task, ...]
    positions: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, homes: Sequence[int], rank: int, phases: Sequence[str]) -> Way:
        """Return the way of a program whose segments are on the ranks `homes`."""
        indices = [index for index, home in enumerate(homes) if home == rank]
        # The segments forwards, then backwards in each later phase.
        tasks = [Task(phase, index) for phase in phases for index in (indices if phase == FORWARD else indices[::-1])]
        counts = dict.fromkeys(phases, -1)
        positions = []
        for task in tasks:
            counts[task.phase] += 1
            positions.append((_PHASE_ORDER[task.phase], counts[task.phase]))
        return cls(tuple(tasks), tuple(positions))


class Runner:
    """One microbatch on one rank: its tasks there, and the number of those done."""

    __slots__ = ("_positions", "begun", "done", "mailbox", "microbatch", "next", "started", "tasks")

    def __init__(self, microbatch: int, way: Way) -> None:
        self.microbatch = microbatch
        self.tasks, self._positions = way
        self.done = 0
        self.next: Task | None = self.tasks[0] if self.tasks else None
        self.started = False
        # A started microbatch may still wait for its first message [2]; one that has begun holds memory.
        self.begun = False
        self.mailbox: set[Task] = set()

    def end_task(self) -> None:
        """Go on to the next task."""
        self.done += 1
        self.next = self.tasks[self.done] if self.done < len(self.tasks) else None

    def may_follow(self, before: Runner) -> bool:
        """Return True if the microbatch before has passed the position of this one's next task [4]."""
        return before.next is None or before._positions[before.done] > self._positions[self.done]


class Rank:
    """One rank: its runners, and the bytes that its memory holds.

    What the schedule asks for is kept up to date with each change, because a choice looks at all microbatches and a
    change concerns one or two: see `update`.
    """

    def __init__(self, runners: Sequence[Runner], pipeline: str, active: int) -> None:
        self.runners = runners
        self.choose_next = make_schedule(pipeline, active=active)
        self.busy = False
        # False from a choice of nothing on, until a message arrives or a task ends: the schedule would say the same.
        self.changed = True
        self.events: list[Event] = []
        self.live = self.peak_live = 0
        self.kept_bytes = self.peak_kept_bytes = 0
        # In the order of their numbers. A fresh microbatch may start without its message [2].
        self._fresh = [runner.microbatch for runner in runners if runner.next is not None]
        self._runnable: dict[str, list[int]] = {FORWARD: [], BACKWARD: [], WEIGHT: []}
        # The phase of whose list a microbatch is.
        self._listed: dict[int, str] = {}
        self._started = 0
        self._forwards_left = sum(runner.next is not None and runner.next.phase == FORWARD for runner in runners)

    def can_run(self, runner: Runner) -> bool:
        """Return True if the runner's next task has its message, and its turn has come [4]."""
        task = runner.next
        if task is None or task not in runner.mailbox:
            return False
        return runner.microbatch == 0 or runner.may_follow(self.runners[runner.microbatch - 1])

    def update(self, runner: Runner) -> None:
        """Note whether a started microbatch can run: after its start, a message for it, and a task of it or [4]."""
        task = runner.next
        phase = task.phase if task is not None and runner.started and self.can_run(runner) else None
        listed = self._listed.get(runner.microbatch)
        if phase == listed:
            return
        if listed is not None:
            self._runnable[listed].remove(runner.microbatch)
            del self._listed[runner.microbatch]
        if phase is not None:
            insort(self._runnable[phase], runner.microbatch)
            self._listed[runner.microbatch] = phase

    def receive(self, runner: Runner, task: Task) -> None:
        """Put a message into the mailbox of a microbatch."""
        runner.mailbox.add(task)
        self.changed = True
        self.update(runner)

    def end_task(self, runner: Runner) -> None:
        """Go on to the next task of a microbatch; the one after it may have waited for that [4]."""
        before = runner.next
        runner.end_task()
        self.busy, self.changed = False, True
        if before is not None and before.phase == FORWARD and (runner.next is None or runner.next.phase != FORWARD):
            self._forwards_left -= 1
        if runner.next is None:
            self.live -= 1
            self._started -= 1
        self.update(runner)
        if runner.microbatch + 1 < len(self.runners):
            self.update(self.runners[runner.microbatch + 1])

    def ready(self) -> Ready:
        """Return what the schedule asks for."""
        return Ready(
            forward=tuple(self._runnable[FORWARD]),
            backward=tuple(self._runnable[BACKWARD]),
            fresh=tuple(self._fresh),
            live=self._started,
            forwards_left=self._forwards_left,
            weight=tuple(self._runnable[WEIGHT]),
        )

    def choose(self) -> Runner | None:
        """Return the runner that the schedule chooses; start those that must wait for a message first [2]."""
        while (microbatch := self.choose_next(self.ready())) is not None:
            runner = self.runners[microbatch]
            if not runner.started:
                runner.started = True
                self._started += 1
                self._fresh.remove(microbatch)
                self.update(runner)
            if self.can_run(runner):
                return runner
            # The runtime would start a thread, which waits at once; so the schedule is asked again.
        self.changed = False
        return None
