"""Finds a term of a loss that adds up the samples of a batch: that of a microbatch is a part, and not a mean.

`unsupported.means_only` tries a loss function. A term of `add_loss`, or of a model's own `compute_loss`, is known by
its operations only:

    loss = mean(errors) + 0.1 * sum(square(hidden))           the second one is found
    loss = mean(errors) + 0.1 * sum(square(hidden)) / 8       it is found unless 8 is the size of a microbatch
    loss = mean(errors) + 0.1 * sum(square(kernel))           a penalty on weights is the same in each microbatch
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError

# Operations on numbers that keep a sum of samples a sum.
_KEEPING = frozenset({"AddV2", "Add", "AddN", "Sub", "Neg", "Identity", "Cast", "Reshape", "Squeeze", "Abs", "Sum"})
_QUOTIENTS = frozenset({"RealDiv", "Div", "DivNoNan"})


def refuse_sums(loss: Any, extent: int | None) -> None:
    """Raise `ParallelError` for a loss with a sum over samples; `extent` is the number of samples of a microbatch."""
    term = None if extent is None else _Terms(loss.graph, extent).sum_in(loss)
    if term is not None:
        raise ParallelError(
            f"fit: the loss of a batch is not the mean over its microbatches: {term.name!r} adds up samples, in"
            " add_loss or in a compute_loss of the model's own. Take tf.reduce_mean of the samples' values, or divide"
            " by tf.shape(values)[0]; or use microbatches: 1"
        )


class _Terms:
    """The operations of a traced step."""

    def __init__(self, graph: Any, extent: int) -> None:
        self._extent = extent
        captured = {inner.op.name for _, inner in graph.captures}
        # The operations whose results depend on the batch; each comes after its inputs.
        self._of_batch: set[str] = set()
        for operation in graph.get_operations():
            is_argument = operation.type == "Placeholder" and operation.name not in captured
            if is_argument or any(tensor.op.name in self._of_batch for tensor in operation.inputs):
                self._of_batch.add(operation.name)

    def sum_in(self, tensor: Any) -> Any:
        """Return the operation that adds up samples in a number; None where there is none."""
        operation = tensor.op
        inputs = list(operation.inputs)
        if operation.type in _QUOTIENTS or operation.type == "Mul":
            terms = [self.sum_in(value) for value in inputs]
            if operation.type == "Mul" and terms[0] is None:
                inputs, terms = inputs[::-1], terms[::-1]
            is_mean = terms[0] is None or self._is_count(inputs[1], terms[0], inverse=operation.type == "Mul")
            return None if is_mean else terms[0]
        if operation.type == "Sum" and inputs[0].shape.rank != 0:
            # Keras adds up the terms of a model as a list of numbers.
            if inputs[0].op.type != "Pack":
                return operation if self._has_samples(inputs[0]) else None
            inputs = list(inputs[0].op.inputs)
        elif operation.type not in _KEEPING:
            return None
        return next((term for value in inputs if (term := self.sum_in(value)) is not None), None)

    def _is_count(self, divisor: Any, term: Any, *, inverse: bool) -> bool:
        """Say whether a divisor is the number of the values that a sum adds up, or of the samples among them."""
        value = tf.get_static_value(divisor)
        if value is None:
            # The graph computes it: from the shape of the values, or as the number of a batch's words.
            return True
        counts = {self._extent}
        for extent in term.inputs[0].shape:
            counts |= {count * extent for count in counts if extent not in (None, self._extent)}
        return any(np.isclose(1 / value if inverse else value, count) for count in counts)

    def _has_samples(self, tensor: Any) -> bool:
        """Say whether a tensor has values of each sample, which no mean over the samples has joined before."""
        if tensor.op.name not in self._of_batch:
            return False
        extents = tensor.shape
        while True:
            operation = tensor.op
            if operation.type == "Mean":
                axes = np.atleast_1d(tf.get_static_value(operation.inputs[1])) % operation.inputs[0].shape.rank
                if 0 in axes:
                    return False
            before = [value for value in operation.inputs if value.shape.rank != 0 and value.op.name in self._of_batch]
            if len(before) != 1:
                return any(extent is None or extent % self._extent == 0 for extent in extents)
            tensor = before[0]
