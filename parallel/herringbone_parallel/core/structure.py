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

Change = Callable[[Any], Any]

# How values of a type are taken apart, None for a leaf: asked for once per type, as there are many leaves.
_TAKEN_APART: dict[type, Callable[[Any, Change], Any] | None] = {}


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves in a fixed order."""
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    replace_leaves(value, note)
    return found


def replace_leaves(value: Any, change: Change) -> Any:
    """Return the same structure with each leaf changed.

    >>> replace_leaves({"a": [1, (2, None)]}, lambda leaf: leaf and leaf * 10)
    {'a': [10, (20, None)]}
    """
    kind = type(value)
    if kind not in _TAKEN_APART:
        _TAKEN_APART[kind] = _way_of(kind)
    way = _TAKEN_APART[kind]
    return change(value) if way is None else way(value, change)


def _way_of(kind: type) -> Callable[[Any, Change], Any] | None:
    if issubclass(kind, tuple):
        return _replace_named if hasattr(kind, "_fields") else _replace_items
    if issubclass(kind, Mapping):
        return _replace_mapping
    if issubclass(kind, list) or kind is set:
        return _replace_items
    return _replace_fields if dataclasses.is_dataclass(kind) and not issubclass(kind, type) else None


def _replace_items(value: Any, change: Change) -> Any:
    return type(value)([replace_leaves(item, change) for item in value])


def _replace_named(value: Any, change: Change) -> Any:
    return type(value)(*[replace_leaves(item, change) for item in value])


def _replace_fields(value: Any, change: Change) -> Any:
    changed = copy.copy(value)
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(changed, field.name, replace_leaves(getattr(value, field.name), change))
    return changed


def _replace_mapping(value: Mapping[Any, Any], change: Change) -> Any:
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
