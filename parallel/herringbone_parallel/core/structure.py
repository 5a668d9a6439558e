"""Flattens nested Python values to a list of leaves, and builds them again from changed leaves.

    leaves = leaves_of({"a": [x, y]})
    rebuild({"a": [x, y]}, [f(leaf) for leaf in leaves])

Lists, tuples, named tuples, dicts (of any subclass), sets and dataclasses are containers; everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Change = Callable[[Any], Any]

# The function that rebuilds a container of a type, None for a leaf's type. A step flattens many values of few types, so
# each type is classified once.
_REBUILDERS: dict[type, Callable[[Any, Change], Any] | None] = {}


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves in a fixed order."""
    leaves: list[Any] = []

    def collect(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    replace_leaves(value, collect)
    return leaves


def replace_leaves(value: Any, change: Change) -> Any:
    """Return the same structure with each leaf changed.

    >>> replace_leaves({"a": [1, (2, None)]}, lambda leaf: leaf and leaf * 10)
    {'a': [10, (20, None)]}
    """
    kind = type(value)
    if kind not in _REBUILDERS:
        _REBUILDERS[kind] = _rebuilder(kind)
    rebuilder = _REBUILDERS[kind]
    return change(value) if rebuilder is None else rebuilder(value, change)


def _rebuilder(kind: type) -> Callable[[Any, Change], Any] | None:
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
            # A frozen dataclass refuses a plain assignment.
            object.__setattr__(changed, field.name, replace_leaves(getattr(value, field.name), change))
    return changed


def _replace_mapping(value: Mapping[Any, Any], change: Change) -> Any:
    items = {key: replace_leaves(item, change) for key, item in value.items()}
    if type(value) is dict:
        return items
    # A copy keeps the type and the other attributes of a subclass, such as OrderedDict or a model's output class.
    changed = copy.copy(value)
    for key, item in items.items():
        changed[key] = item  # type: ignore[index]
    return changed


def rebuild(template: Any, leaves: Sequence[Any]) -> Any:
    """Return `template`'s structure with its leaves replaced, in the order of `leaves_of`."""
    remaining: Iterator[Any] = iter(leaves)
    built = replace_leaves(template, lambda _: next(remaining))
    # The iterator itself is the default, because any other value could be a leaf.
    if next(remaining, remaining) is not remaining:
        raise AssertionError(f"more leaves than {template!r} has")
    return built
