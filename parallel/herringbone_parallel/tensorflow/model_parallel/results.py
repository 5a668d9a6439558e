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


def variables_of(result: Any, traced: Traced, trained: Sequence[Any]) -> list[Any]:
    """Return, for each leaf of the result, the variable whose gradient it is, or None.

    `trained` are the model's variables that are trained, in their order. A leaf that is None may be the gradient of a
    variable, too. Raises `ParallelError` for a leaf that may be the gradient of any of several variables.
    """
    origins = _Origins(traced)
    leaves = leaves_of(result)
    found = [origins.nearest(leaf) if is_result(leaf) else None for leaf in leaves]
    places = rebuild(result, range(len(leaves)))
    for items in _lists(places):
        if _is_in_order([leaves[item] for item in items], [found[item] for item in items], trained):
            for item, variable in zip(items, trained, strict=True):
                found[item] = variable
    for number, leaf in enumerate(leaves):
        if found[number] is None and is_result(leaf):
            found[number] = origins.furthest(leaf)
    for items in _lists(places):
        _refuse_unknown([leaves[item] for item in items], [found[item] for item in items], trained)
    return found


def _lists(places: Any) -> Iterator[list[int]]:
    """Yield the leaves of each list and tuple of a result by their numbers; `places` has numbers as its leaves.

    From such a list, and not from a dict, the gradients of other ranks are left out.
    """
    items = list(places.values()) if type(places) is dict else places if type(places) in (list, tuple) else []
    if type(places) is not dict:
        yield [item for item in items if type(item) is int]
    for item in items:
        yield from _lists(item)


def _fits(leaf: Any, variable: Any) -> bool:
    return bool(tf.TensorShape(leaf.shape).is_compatible_with(variable.shape))


def _is_in_order(leaves: Sequence[Any], found: Sequence[Any], trained: Sequence[Any]) -> bool:
    """Say whether a list has a gradient for each trained variable, in order; some may be constants, mixed, or None."""
    return len(leaves) == len(trained) > 1 and all(
        known is variable or (known is None and (leaf is None or (is_result(leaf) and leaf.shape == variable.shape)))
        for leaf, known, variable in zip(leaves, found, trained, strict=True)
    )


def _refuse_unknown(leaves: Sequence[Any], found: Sequence[Any], trained: Sequence[Any]) -> None:
    """Raise `ParallelError` for a list of gradients with a leaf more that may be a missing gradient."""
    known = {id(variable) for variable in found}
    missing = [variable for variable in trained if id(variable) not in known]
    for leaf, variable in zip(leaves, found, strict=True) if len(missing) < len(trained) else ():
        may_be = leaf is None or (is_result(leaf) and any(v.shape.rank and _fits(leaf, v) for v in missing))
        if missing and variable is None and may_be:
            raise _unclear(leaf, "is in a list of gradients")


def _unclear(leaf: Any, fact: str) -> ParallelError:
    # On each rank a list of gradients has those of the rank's own variables. With an item too many, each gradient after
    # it would be applied to the variable of another one.
    name = "None" if leaf is None else f"{getattr(leaf, 'name', 'a value')!r} of shape {leaf.shape}"
    return ParallelError(
        f"smp.step: {name}, among the results of the step, {fact}, and the step cannot see which variable it is the"
        " gradient of. Return a list with a gradient for each of model.trainable_variables; or change each gradient by"
        " itself; or change them after the step"
    )


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

    def nearest(self, leaf: Any) -> Any:
        """Return the variable of a result that has as many elements as the gradient, or None."""
        # The nearest gradients decide. The scale of `tf.clip_by_global_norm` depends on all of them, further away.
        for tensors in self._levels(_values(leaf), _same_elements):
            if found := self._variables(tensors):
                return found[0] if len(found) == 1 else None
        return None

    def furthest(self, leaf: Any) -> Any:
        """Return the variable of a result whose operations keep no number of elements, or None.

        Raises `ParallelError` for a tensor that may have a variable's shape, and is computed from several gradients.
        """
        levels = self._levels(_values(leaf), _operands)
        several = self._variables([tensor for tensors in levels for tensor in tensors])
        sparse = isinstance(leaf, tf.IndexedSlices)
        if len(several) == 1 and (sparse or leaf.shape == several[0].shape) and several[0].shape.rank:
            return several[0]
        if several and (sparse or (leaf.shape.rank != 0 and any(_fits(leaf, v) for v in several))):
            names = ", ".join(sorted(variable.name for variable in several)[:3])
            raise _unclear(leaf, f"is computed from gradients ({names})")
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


def _values(leaf: Any) -> Any:
    """Return the tensor, or the values of a sparse one."""
    return tf.nest.flatten(leaf, expand_composites=True)[0]


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


def template_of(result: Any, positions: dict[int, int], elsewhere: Sequence[bool]) -> Any:
    """Return the result with a `ResultSlot` for each tensor; gradients of other ranks' variables are left out.

    `positions` maps the number of a flat output to its position among this rank's results; `elsewhere` marks the leaves
    that are left out.
    """
    number = 0
    leaves: list[Any] = []
    for leaf, is_elsewhere in zip(leaves_of(result), elsewhere, strict=True):
        numbers = range(number, number + _parts(leaf))
        number += len(numbers)
        if is_elsewhere:
            leaves.append(_ELSEWHERE)
        elif is_result(leaf):
            composite = leaf if isinstance(leaf, tf.IndexedSlices) else None
            leaves.append(ResultSlot(tuple(positions[n] for n in numbers), composite))
        else:
            leaves.append(leaf)
    return _without_elsewhere(rebuild(result, leaves))


def of_outputs(result: Any, values: Sequence[Any]) -> list[Any]:
    """Return a value per leaf as a value per flat output: a sparse leaf has several."""
    return [v for leaf, v in zip(leaves_of(result), values, strict=True) for _ in range(_parts(leaf))]


def _parts(leaf: Any) -> int:
    return len(tf.nest.flatten(leaf, expand_composites=True)) if is_result(leaf) else 0


def _without_elsewhere(value: Any) -> Any:
    """Drop the marks from lists, tuples and dicts, so that a list of gradients fits `trainable_variables`."""
    if value is _ELSEWHERE:
        return None
    if type(value) in (list, tuple):
        return type(value)(_without_elsewhere(item) for item in value if item is not _ELSEWHERE)
    if type(value) is dict:
        return {key: _without_elsewhere(item) for key, item in value.items() if item is not _ELSEWHERE}
    return replace_leaves(value, lambda leaf: None if leaf is _ELSEWHERE else leaf)
