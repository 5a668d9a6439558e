"""What a traced step returned: which of its tensors are gradients, and of what; where each goes in a rank's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced

# What a gradient may go through in a step and still be that variable's gradient.
_SHAPES_A_GRADIENT = frozenset(
    {"Identity", "Cast", "Mul", "RealDiv", "AddV2", "Sub", "Neg", "Minimum", "Maximum", "SelectV2", "AddN"}
)


class _Elsewhere:
    """Stands in a result for the gradient of a variable that another rank holds."""


_ELSEWHERE = _Elsewhere()


class Place:
    """The place of a tensor, or of the parts of a sparse gradient, in a step's flat results."""

    def __init__(self, places: tuple[int, ...], composite: Any = None) -> None:
        self.places, self.composite = places, composite

    def packed(self, leaves: Sequence[Any]) -> Any:
        parts = [leaves[place] for place in self.places]
        if self.composite is None:
            return parts[0]
        return tf.nest.pack_sequence_as(self.composite, parts, expand_composites=True)


def is_result(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor | tf.IndexedSlices | tf.Variable | np.ndarray)


def variables_of(result: Any, traced: Traced) -> list[Any]:
    """Return the variable whose gradient each output is, or None."""
    found: list[Any] = []
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        parts = tf.nest.flatten(leaf, expand_composites=True)
        found += [_gradient_of(parts[0], traced)] * len(parts)
    return found


def dense_of(result: Any) -> set[int]:
    """Return which outputs are tensors by themselves, and not parts of sparse ones."""
    found: set[int] = set()
    number = 0
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        if not isinstance(leaf, tf.IndexedSlices):
            found.add(number)
        number += len(tf.nest.flatten(leaf, expand_composites=True))
    return found


def _gradient_of(tensor: Any, traced: Traced, depth: int = 8) -> Any:
    """Return the variable whose gradient a tensor is, also after it was scaled, clipped or cast."""
    found = traced.gradient_of.get(getattr(tensor, "name", ""))
    if found is not None or depth == 0 or not isinstance(tensor, tf.Tensor):
        return found
    if not hasattr(tensor, "op") or tensor.op.type not in _SHAPES_A_GRADIENT:
        return None
    for before in tensor.op.inputs:
        if before.shape.as_list() == tensor.shape.as_list():
            found = _gradient_of(before, traced, depth - 1)
            if found is not None:
                return found
    return None


def template_of(result: Any, places: dict[int, int]) -> Any:
    """Return the result with the places of its tensors; gradients of other ranks' variables leave lists and dicts."""
    number = -1
    leaves = []
    for leaf in leaves_of(result):
        if not is_result(leaf):
            leaves.append(leaf)
            continue
        parts = tf.nest.flatten(leaf, expand_composites=True)
        numbers = range(number + 1, number + 1 + len(parts))
        number += len(parts)
        if any(n not in places for n in numbers):
            leaves.append(_ELSEWHERE)
        else:
            composite = leaf if isinstance(leaf, tf.IndexedSlices) else None
            leaves.append(Place(tuple(places[n] for n in numbers), composite))
    return _without_elsewhere(rebuild(result, leaves))


def _without_elsewhere(value: Any) -> Any:
    if value is _ELSEWHERE:
        return None
    if type(value) in (list, tuple):
        return type(value)(_without_elsewhere(item) for item in value if item is not _ELSEWHERE)
    if type(value) is dict:
        return {key: _without_elsewhere(item) for key, item in value.items() if item is not _ELSEWHERE}
    return replace_leaves(value, lambda leaf: None if leaf is _ELSEWHERE else leaf)
