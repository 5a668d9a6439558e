"""Nested Python values as a flat list of leaves and a way back.

    leaves = leaves_of({"a": [x, y]})
    rebuild({"a": [x, y]}, [f(leaf) for leaf in leaves])

Lists, tuples, named tuples, dicts (of any subclass), sets and dataclasses are taken apart; everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# What most leaves are, so that they need not be asked for everything else they might be.
_ATOMS = {int, float, bool, str, type(None)}


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves in a fixed order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    replace_leaves(value, note)
    return found


def replace_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same structure with each leaf changed.

    >>> replace_leaves({"a": [1, (2, None)]}, lambda leaf: leaf and leaf * 10)
    {'a': [10, (20, None)]}
    """
    kind = type(value)
    if kind in _ATOMS:
        return change(value)
    if kind in (list, set):
        return kind(replace_leaves(item, change) for item in value)
    if isinstance(value, tuple):
        items = [replace_leaves(item, change) for item in value]
        return kind(*items) if hasattr(value, "_fields") else tuple(items) if kind is tuple else kind(items)
    if isinstance(value, Mapping):
        return _replace_mapping(value, change)
    if isinstance(value, list):
        return kind([replace_leaves(item, change) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if hasattr(value, field.name)]
        changed = copy.copy(value)
        for field in fields:
            object.__setattr__(changed, field.name, replace_leaves(getattr(value, field.name), change))
        return changed
    return change(value)


def _replace_mapping(value: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    items = {key: replace_leaves(item, change) for key, item in value.items()}
    if type(value) is dict:
        return items
    # Subclasses (OrderedDict, a model's output class) keep their type and their other attributes.
    changed = copy.copy(value)
    for key, item in items.items():
        changed[key] = item  # type: ignore[index]
    return changed


def rebuild(template: Any, leaves: Sequence[Any]) -> Any:
    """Return `template`'s structure with its leaves replaced, in the order of `leaves_of`."""
    remaining: Iterator[Any] = iter(leaves)
    built = replace_leaves(template, lambda _: next(remaining))
    if next(remaining, remaining) is not remaining:
        raise AssertionError(f"more leaves than places in {template!r}")
    return built
