"""Results of a traced step: the variable that each gradient belongs to, and the position of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced

# A gradient may pass through these operations in a step and remain the gradient of the same variable.
_KEEPS_A_GRADIENT = frozenset(
    {"Identity", "Cast", "Mul", "RealDiv", "AddV2", "Sub", "Neg", "Minimum", "Maximum", "SelectV2", "AddN"}
)
# A script scales, clips and casts a gradient in a few operations. The limit keeps the search short.
_SEARCH_DEPTH = 8


class _Elsewhere:
    """Marks the gradient of a variable that another rank holds."""


_ELSEWHERE = _Elsewhere()


class ResultSlot:
    """Positions of a tensor, or of the parts of a sparse gradient, in a step's flat results."""

    def __init__(self, positions: tuple[int, ...], composite: Any = None) -> None:
        self.positions, self.composite = positions, composite

    def packed(self, leaves: Sequence[Any]) -> Any:
        """Return the tensor of one microbatch, built from that microbatch's flat results."""
        parts = [leaves[position] for position in self.positions]
        if self.composite is None:
            return parts[0]
        return tf.nest.pack_sequence_as(self.composite, parts, expand_composites=True)


def is_result(leaf: Any) -> bool:
    """Say whether a leaf of the step's result is a tensor, and not a plain value."""
    return isinstance(leaf, tf.Tensor | tf.IndexedSlices | tf.Variable | np.ndarray)


def variables_of(result: Any, traced: Traced) -> list[Any]:
    """Return, for each flat output, the variable whose gradient it is, or None."""
    variables: list[Any] = []
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        parts = tf.nest.flatten(leaf, expand_composites=True)
        variables += [_gradient_of(parts[0], traced)] * len(parts)
    return variables


def dense_of(result: Any) -> set[int]:
    """Return the flat outputs that are whole tensors, and not parts of sparse ones."""
    dense: set[int] = set()
    number = 0
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        if not isinstance(leaf, tf.IndexedSlices):
            dense.add(number)
        number += len(tf.nest.flatten(leaf, expand_composites=True))
    return dense


def _gradient_of(tensor: Any, traced: Traced, depth: int = _SEARCH_DEPTH) -> Any:
    """Return the variable whose gradient a tensor is, also after the gradient was scaled, clipped or cast."""
    variable = traced.gradient_of.get(getattr(tensor, "name", ""))
    if variable is not None or depth == 0 or not isinstance(tensor, tf.Tensor):
        return variable
    if not hasattr(tensor, "op") or tensor.op.type not in _KEEPS_A_GRADIENT:
        return None
    for operand in tensor.op.inputs:
        # A scale or a clip limit has another shape: only the operand of the same shape can be the gradient.
        if operand.shape.as_list() == tensor.shape.as_list():
            variable = _gradient_of(operand, traced, depth - 1)
            if variable is not None:
                return variable
    return None


def template_of(result: Any, positions: dict[int, int]) -> Any:
    """Return the result with a `ResultSlot` for each tensor; gradients of other ranks' variables are left out.

    `positions` maps the number of a flat output to its position among this rank's results.
    """
    number = -1
    leaves = []
    for leaf in leaves_of(result):
        if not is_result(leaf):
            leaves.append(leaf)
            continue
        parts = tf.nest.flatten(leaf, expand_composites=True)
        numbers = range(number + 1, number + 1 + len(parts))
        number += len(parts)
        if any(n not in positions for n in numbers):
            leaves.append(_ELSEWHERE)
        else:
            composite = leaf if isinstance(leaf, tf.IndexedSlices) else None
            leaves.append(ResultSlot(tuple(positions[n] for n in numbers), composite))
    return _without_elsewhere(rebuild(result, leaves))


def _without_elsewhere(value: Any) -> Any:
    """Drop the marks from lists, tuples and dicts, so that a list of gradients fits `trainable_variables`."""
    if value is _ELSEWHERE:
        return None
    if type(value) in (list, tuple):
        return type(value)(_without_elsewhere(item) for item in value if item is not _ELSEWHERE)
    if type(value) is dict:
        return {key: _without_elsewhere(item) for key, item in value.items() if item is not _ELSEWHERE}
    return replace_leaves(value, lambda leaf: None if leaf is _ELSEWHERE else leaf)
