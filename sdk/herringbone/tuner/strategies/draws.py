"""Random configurations, each a function of the seed and its index. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from herringbone.tuner.definition import TuningDefinition

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
