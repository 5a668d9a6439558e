"""The order in which a search learns results, the same however fast its jobs run. Pure.

A strategy that used each result as soon as it is there would propose other trials on a busier machine, or after a kill.
Here the search has a clock of its own, in which each job takes as long as its epochs:

    worker 1   [ job 0 ][ job 2      ][ job 4 ...
    worker 2   [ job 1      ][ job 3 ][ job 5 ...
                        ^ job 2 is chosen with the result of job 0, and without that of job 1, even if it is there

There are as many workers as `max_parallel_jobs`. A job is proposed once the results that it may use are there. Where
all jobs are equally long, job k uses exactly the results of jobs 0 to k - max_parallel_jobs. Where the real times of
jobs are as their epochs, no worker waits for another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.completion import completion_reason
from herringbone.tuner.trials import Proposal, Trial


class Choice(Protocol):
    """A strategy's decisions, each from the jobs proposed so far and the results that it may use, in their order."""

    def is_ready(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> bool:
        """Return whether there is a job to propose now; False until the next result otherwise."""
        ...

    def choose(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal:
        """Return the next job; called only when `is_ready`."""
        ...


class InOrder:
    """A strategy that makes its decisions in the order of the search's own clock."""

    def __init__(self, definition: TuningDefinition, choice: Choice) -> None:
        self._definition = definition
        self._choice = choice
        self._replay = _Replay()

    def propose(self, trials: Sequence[Trial], free: int) -> list[Proposal]:
        """Return at most `free` new proposals; see `Strategy`."""
        known = [trial.proposal for trial in trials]
        # Nothing but the trials tells when a job began on this clock, so the search is replayed from its first job, or
        # from where the last call came to.
        if not self._replay.has_begun_with(trials):
            self._replay = _Replay()
        replay = self._replay
        while True:
            while len(replay.running) < self._definition.max_parallel_jobs and self._is_ready(replay):
                number = len(replay.proposals)
                if number >= len(known) + free:
                    return replay.proposals[len(known) :]
                # Known jobs are not chosen again: that takes time, and another release may choose differently.
                is_known = number < len(known)
                replay.begin(known[number] if is_known else self._choice.choose(replay.proposals, replay.results))
            if not replay.running:
                return replay.proposals[len(known) :]
            ended = replay.running[0][1]
            if ended >= len(trials) or not trials[ended].state.is_over:
                return replay.proposals[len(known) :]
            replay.end(trials[ended])

    def _is_ready(self, replay: _Replay) -> bool:
        if completion_reason(self._definition, replay.results) is not None:
            return False
        return self._choice.is_ready(replay.proposals, replay.results)


class _Replay:
    """A search up to a moment of its clock: the jobs that began, those that run, and the results in their order."""

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []
        self.results: list[Trial] = []
        self.running: list[tuple[int, int]] = []  # a heap of (end, number)
        self._now = 0

    def has_begun_with(self, trials: Sequence[Trial]) -> bool:
        """Return whether this is the beginning of these trials."""
        return self.proposals == [trial.proposal for trial in trials[: len(self.proposals)]] and all(
            trials[result.number].has_result == result.has_result
            and (not result.has_result or trials[result.number].objective == result.objective)
            for result in self.results
        )

    def begin(self, proposal: Proposal) -> None:
        """Start a job on a free worker."""
        self.proposals.append(proposal)
        heapq.heappush(self.running, (self._now + _duration(proposal, self.proposals), proposal.number))

    def end(self, trial: Trial) -> None:
        """End the job that ends next; `trial` is its result."""
        self._now, _ = heapq.heappop(self.running)
        self.results.append(trial)


def _duration(proposal: Proposal, proposals: Sequence[Proposal]) -> int:
    """Return a job's epochs: those that a job which it continues has trained are not trained again."""
    if proposal.resource is None:
        return 1
    earlier = None if proposal.resumes is None else proposals[proposal.resumes].resource
    return max(proposal.resource - (earlier or 0), 1)
