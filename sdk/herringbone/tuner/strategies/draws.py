"""Random search and grid search, which need no results: each configuration is a function of seed and index. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.parameters import CategoricalParameter
from herringbone.tuner.strategies.warm_start import first_configurations, known_results
from herringbone.tuner.trials import Proposal, Trial

# Ranges with few combinations run out of new ones.
_MOST_DRAWS = 20


def draw(definition: TuningDefinition, index: int, attempt: int = 0) -> dict[str, Any]:
    """Return a random configuration: the same for the same seed and index, whatever was drawn before.

    >>> draw(definition, 0)         # doctest: +SKIP
    {'lr': 0.0012, 'layers': 3}
    """
    # A text as the seed is hashed by SHA-512, so that neighbours differ, in all releases of Python alike.
    source = random.Random(f"{definition.seed} {index} {attempt}")  # noqa: S311 - a search, not a secret
    # In the order of names: a definition that was written to a file and read again may have them in another one.
    return {name: definition.ranges[name].from_unit(source.random()) for name in sorted(definition.ranges)}


def draw_new(definition: TuningDefinition, index: int, known: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a random configuration that is not `known`, where a few draws find one."""
    taken = {_key(values) for values in known}
    for attempt in range(_MOST_DRAWS):
        values = draw(definition, index, attempt)
        if _key(values) not in taken:
            return values
    return draw(definition, index)


def _key(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))


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
