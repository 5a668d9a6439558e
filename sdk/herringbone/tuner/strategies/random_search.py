"""Random search and grid search, which need no results. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import CategoricalParameter
from herringbone.tuner.strategies.draws import draw_new
from herringbone.tuner.strategies.warm_start import first_configurations, known_results
from herringbone.tuner.trials import Proposal, Trial


class Random:
    """Random search: each configuration is drawn on the scales of the ranges, none twice where there are enough."""

    def __init__(self, definition: TuningDefinition) -> None:
        self._definition = definition
        self._first = first_configurations(definition)
        self._known = [prior.values for prior in known_results(definition)]

    def is_ready(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> bool:  # noqa: ARG002
        """Return whether configurations are left."""
        return len(proposals) < self._definition.job_limit

    def choose(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal:  # noqa: ARG002
        """Return the next configuration: the best of the parents of a transfer first, then drawn ones."""
        number = len(proposals)
        if number < len(self._first):
            return Proposal(number, self._first[number])
        known = itertools.chain(self._known, (proposal.values for proposal in proposals))
        return Proposal(number, draw_new(self._definition, number, known))


class Grid:
    """Grid search: every combination once, in the order of the ranges; the last one changes fastest."""

    def __init__(self, definition: TuningDefinition) -> None:
        self._definition = definition

    def is_ready(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> bool:  # noqa: ARG002
        """Return whether combinations are left."""
        return len(proposals) < self._definition.combinations

    def choose(self, proposals: Sequence[Proposal], results: Sequence[Trial]) -> Proposal:  # noqa: ARG002
        """Return the next combination."""
        rest, values = len(proposals), {}
        for name, choices in reversed(self._definition.ranges.items()):
            assert isinstance(choices, CategoricalParameter)  # `define` refuses all others
            rest, place = divmod(rest, len(choices.values))
            values[name] = choices.values[place]
        return Proposal(len(proposals), {name: values[name] for name in self._definition.ranges})


def all_at_once(choice: Random | Grid, trials: Sequence[Trial], free: int) -> list[Proposal]:
    """Return at most `free` new proposals of a strategy that waits for no results."""
    proposals: list[Any] = [trial.proposal for trial in trials]
    while len(proposals) < len(trials) + free and choice.is_ready(proposals, ()):
        proposals.append(choice.choose(proposals, ()))
    return proposals[len(trials) :]
