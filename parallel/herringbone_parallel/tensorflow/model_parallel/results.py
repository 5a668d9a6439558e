"""Results of a traced step: the variable that each gradient belongs to, and the position of each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, rebuild, replace_leaves
from herringbone_parallel.tensorflow.model_parallel.placement.trace import Traced

# The result of these operations is a figure about a gradient, and no gradient, also where the shape is the same.
_REDUCTIONS = frozenset({"EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Sum"})
# These operations make a dense gradient of a sparse one; the number is that of the input with the values.
_TO_DENSE = {"UnsortedSegmentSum": 0, "ScatterNd": 1}


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
    """Return, for each flat output, the variable whose gradient it is, or None.

    Raises `ParallelError` for a tensor that has a variable's shape and is computed from gradients of several variables.
    """
    variables: list[Any] = []
    origins = _Origins(traced)
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        parts = tf.nest.flatten(leaf, expand_composites=True)
        variables += [origins.variable_of(leaf, parts[0])] * len(parts)
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


def sparse_of(result: Any) -> list[int]:
    """Return the first flat output of each sparse tensor, its values; the next one is that of its indices."""
    dense, numbers, number = dense_of(result), [], 0
    for leaf in [leaf for leaf in leaves_of(result) if is_result(leaf)]:
        if number not in dense:
            numbers.append(number)
        number += len(tf.nest.flatten(leaf, expand_composites=True))
    return numbers


class _Origins:
    """Finds the variable whose gradient a result of a step is.

    A script may change a gradient in the step: scale, clip or check it, take its sign, reshape it. The search follows
    every operation whose result has as many elements as one of its operands.
    """

    def __init__(self, traced: Traced) -> None:
        self._gradient_of = traced.gradient_of
        # Operations before the first gradient depend on none, so the search ends at them.
        first = min((start for start, _ in traced.gradients), default=None)
        operations = [] if first is None else traced.graph.get_operations()[first:]
        self._after = {operation.name for operation in operations}

    def variable_of(self, leaf: Any, tensor: Any) -> Any:
        """Return the variable, or None; `tensor` is the leaf, or the values of a sparse one."""
        # The nearest gradients decide. The scale of `tf.clip_by_global_norm` depends on all of them, further away.
        for tensors in self._levels(tensor, _same_elements):
            found = self._variables(tensors)
            if len(found) == 1:
                return found[0]
            if found:
                break
        several = self._variables([tensor for tensors in self._levels(tensor, _operands) for tensor in tensors])
        sparse = isinstance(leaf, tf.IndexedSlices)
        if several and (sparse or any(leaf.shape.rank and leaf.shape == variable.shape for variable in several)):
            # On each rank a list of gradients has those of the rank's own variables. With a tensor too many, each
            # gradient after it would be applied to the variable of another one.
            raise ParallelError(
                f"smp.step: {tensor.name!r} of shape {leaf.shape}, among the results of the step, is computed from"
                f" gradients ({', '.join(sorted(variable.name for variable in several)[:3])}), and the step cannot see"
                " which variable it is the gradient of. Change each gradient by itself, in operations that keep its"
                " shape and outside of a tf.function; or return the gradients, and change them after the step"
            )
        return None

    def _variables(self, tensors: Sequence[Any]) -> list[Any]:
        named = [self._gradient_of[name] for t in tensors if (name := getattr(t, "name", "")) in self._gradient_of]
        return list({id(variable): variable for variable in named}.values())

    def _levels(self, tensor: Any, follow: Callable[[Any], Sequence[Any]]) -> Iterator[list[Any]]:
        """Yield the tensors that a tensor is computed from, the nearest first, as far back as gradients."""
        level, visited = [tensor], {id(tensor)}
        while level:
            yield level
            operands = {
                id(operand): operand
                for result in level
                if isinstance(result, tf.Tensor) and hasattr(result, "op")
                if result.name not in self._gradient_of and result.op.name in self._after
                for operand in follow(result)
            }
            level = [operand for key, operand in operands.items() if key not in visited]
            visited.update(operands)


def _operands(tensor: Any) -> Sequence[Any]:
    return tensor.op.inputs  # type: ignore[no-any-return]


def _same_elements(tensor: Any) -> Sequence[Any]:
    """Return the operands that may be the gradient which an operation has changed."""
    operation = tensor.op
    if operation.type in _REDUCTIONS:
        return ()
    if operation.type in _TO_DENSE:
        return [operation.inputs[_TO_DENSE[operation.type]]]
    if operation.type == "IdentityN":
        return [operation.inputs[tensor.value_index]]
    # A scale or a clip limit has another number of elements.
    return [operand for operand in operation.inputs if _elements(operand) == _elements(tensor)]


def _elements(tensor: Any) -> Any:
    """Return the number of elements; the shape where an extent is open."""
    return tensor.shape.num_elements() if tensor.shape.is_fully_defined() else str(tensor.shape)


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
