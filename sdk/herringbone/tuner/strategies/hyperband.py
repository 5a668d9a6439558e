"""Hyperband with asynchronous promotions (ASHA): many short trials, of which the best go on. Pure.

Sources: Li et al., "Hyperband", JMLR 18 (2018), for the brackets; Li et al., "A system for massively parallel
hyperparameter tuning", MLSys 2020, for promotions that wait for nobody. With 27 epochs and a reduction factor of 3:

    rung 0        rung 1       rung 2       rung 3
    27 x 1   ->   9 x 3   ->   3 x 9   ->   1 x 27     bracket 0: 27 + 9*2 + 3*6 + 1*18 = 81 epochs
                  12 x 3  ->   4 x 9   ->   1 x 27     bracket 1, for what shows late whether it is good
                               6 x 9   ->   2 x 27     bracket 2
                                            4 x 27     bracket 3

A promoted job continues the checkpoint of the job that it promotes, so no epoch is trained twice. Configurations fill
the brackets in this order, and then again from the first one; `max_jobs` counts configurations.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.draws import draw_new
from herringbone.tuner.trials import Proposal, Trial, gain

REDUCTION_FACTOR = 3


class Bracket(NamedTuple):
    """A number of configurations, and the epochs of each rung that they climb."""

    size: int
    resources: tuple[int, ...]


def make_brackets(least: int, most: int) -> list[Bracket]:
    """Return Hyperband's brackets, that with the shortest trials first.

    >>> make_brackets(1, 9)
    [Bracket(size=9, resources=(1, 3, 9)), Bracket(size=5, resources=(3, 9)), Bracket(size=3, resources=(9,))]
    """
    rungs = 1
    # Integers: a logarithm of 243 to the base 3 is 4.999...
    while least * REDUCTION_FACTOR**rungs <= most:
        rungs += 1
    resources = tuple(max(most // REDUCTION_FACTOR**rung, least) for rung in reversed(range(rungs)))
    # Hyperband's sizes give each bracket about the same number of epochs.
    return [
        Bracket(-(-rungs * REDUCTION_FACTOR ** (count - 1) // count), resources[rungs - count :])
        for count in range(rungs, 0, -1)
    ]


class _Place(NamedTuple):
    """The bracket and the rung of a job."""

    bracket: int
    rung: int


class Hyperband:
    """Hyperband with promotions that wait for nobody."""

    def __init__(self, definition: TuningDefinition) -> None:
        self._definition = definition
        self._kinds = make_brackets(*definition.resources)
        self._limit = definition.job_limit
        # The bracket of each configuration, and the rungs of each bracket.
        self._bracket_of: list[int] = []
        self._resources: list[tuple[int, ...]] = []
        while len(self._bracket_of) < self._limit:
            kind = self._kinds[len(self._resources) % len(self._kinds)]
            self._bracket_of += [len(self._resources)] * min(kind.size, self._limit - len(self._bracket_of))
            self._resources.append(kind.resources)

    def is_ready(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> bool:
        """Return whether a job can be promoted, or a configuration is left."""
        return _configurations(proposals) < self._limit or self._promotion(proposals, results) is not None

    def choose(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal:
        """Return the promotion to the highest rung, of the oldest bracket; without one, a new configuration."""
        if (promotion := self._promotion(proposals, results)) is not None:
            return promotion
        index = _configurations(proposals)
        values = draw_new(self._definition, index, (proposal.values for proposal in proposals))
        return Proposal(len(proposals), values, resource=self._resources[self._bracket_of[index]][0])

    def _promotion(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal | None:
        places = self._places(proposals)
        jobs = collections.Counter(places)
        ended: dict[_Place, list[Trial]] = collections.defaultdict(list)
        for trial in results:
            ended[places[trial.number]].append(trial)
        promoted = {proposal.resumes for proposal in proposals}
        configurations = _configurations(proposals)
        # The bracket that the next configuration belongs to: those before it are full.
        filling = len(self._resources) if configurations == self._limit else self._bracket_of[configurations]
        for bracket in range(min(filling + 1, len(self._resources))):
            is_closed, promotion = bracket < filling, None
            # From the lowest rung up, and the highest promotion counts.
            for rung, resource in enumerate(self._resources[bracket][1:]):
                place = _Place(bracket, rung)
                # Closed: all jobs of the rung ended, and none can come any more from the rungs below.
                is_closed = is_closed and len(ended[place]) == jobs[place]
                for trial in self._promotable(ended[place], is_closed=is_closed):
                    if trial.number not in promoted:
                        promotion = Proposal(len(proposals), trial.proposal.values, resource, trial.number)
                        is_closed = False
                        break
            if promotion is not None:
                return promotion
        return None

    def _promotable(self, ended: Sequence[Trial], *, is_closed: bool) -> list[Trial]:
        """Return the best third of a rung; of a closed rung at least one, so that one trial gets all epochs."""
        count = max(len(ended) // REDUCTION_FACTOR, int(is_closed))
        kind = self._definition.objective_type
        ranked = sorted(ended, key=lambda trial: (-gain(trial, kind), trial.number))
        return [trial for trial in ranked[:count] if trial.has_result]

    def _places(self, proposals: Sequence[Proposal]) -> list[_Place]:
        places: list[_Place] = []
        configurations = 0
        for proposal in proposals:
            if proposal.resumes is None:
                places.append(_Place(self._bracket_of[configurations], 0))
                configurations += 1
            else:
                earlier = places[proposal.resumes]
                places.append(_Place(earlier.bracket, earlier.rung + 1))
        return places


def _configurations(proposals: Sequence[Proposal]) -> int:
    return sum(proposal.resumes is None for proposal in proposals)
