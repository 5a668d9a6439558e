"""Results of a step: one `StepOutput` per tensor, which holds the tensor of each microbatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted

_METHODS = ("variable", "add_n", "accumulate_n")


class StepOutput:
    """A tensor that the step function returned, once per microbatch.

    loss = train_step(images, labels)
    loss.reduce_mean()      # a tensor: the mean over the microbatches
    loss.outputs            # the list, by microbatch
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)

    @not_converted
    def reduce_mean(self) -> tf.Tensor:
        """Return the mean over the microbatches."""
        first = tf.convert_to_tensor(self.outputs[0])
        divisible = first.dtype.is_floating or first.dtype.is_complex
        # The mean of integers may have a fraction, which an integer type would cut off.
        outputs = self.outputs if divisible else [tf.cast(output, tf.float32) for output in self.outputs]
        return _sum(outputs) / tf.cast(len(outputs), outputs[0].dtype)

    @not_converted
    def reduce_sum(self) -> tf.Tensor:
        """Return the sum over the microbatches."""
        return _sum(self.outputs)

    @not_converted
    def concat(self) -> tf.Tensor:
        """Return the microbatches joined along axis 0, in order."""
        return tf.concat(self.outputs, axis=0)

    @not_converted
    def merge(self) -> tf.Tensor:
        """Return the batch: the microbatches joined along axis 0. Source: SMP v1 for TensorFlow."""
        return self.concat()

    @not_converted
    def stack(self) -> tf.Tensor:
        """Return the microbatches stacked along a new axis 0, in order."""
        return tf.stack(self.outputs)

    @not_converted
    def accumulate(self, method: str = "variable", var: Any = None) -> Any:
        """Return the mean over the microbatches, which is the gradient of the whole batch.

            gradients = [gradient.accumulate() for gradient in gradients]

        The mean of sparse gradients is sparse, as that of one process.
        `var`: a variable of the same shape, which receives the mean. `method`: one of SMP v1's methods. They differed
        in memory there; here they are the same. Source: SMP v1 for TensorFlow, `StepOutput.accumulate`.
        """
        if method not in _METHODS:
            raise ParallelError(f"StepOutput.accumulate(method={method!r}): it is one of {', '.join(_METHODS)}")
        if var is None:
            return self._mean_gradient()
        mean = self.reduce_mean()
        var.assign(mean)
        return tf.convert_to_tensor(var)

    def _mean_gradient(self) -> Any:
        if not all(isinstance(output, tf.IndexedSlices) for output in self.outputs):
            return self.reduce_mean()
        # Keras's Adam squares the slices one by one, so it takes another step for the same gradient as a tensor.
        values = tf.concat([output.values for output in self.outputs], 0)
        indices = tf.concat([output.indices for output in self.outputs], 0)
        return tf.IndexedSlices(values / tf.cast(len(self.outputs), values.dtype), indices, self.outputs[0].dense_shape)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


class SummedOutput(StepOutput):
    """A tensor whose microbatches were added up as they came: a gradient.

    `fetch` returns the microbatches one by one. A step keeps them only where a caller reads `outputs`.
    """

    def __init__(self, total: Any, count: int, fetch: Callable[[], list[Any]]) -> None:
        # The base class is not initialized: it would set `outputs`, which is a property here.
        self._total, self._count, self._fetch = total, count, fetch

    @property
    def outputs(self) -> list[Any]:  # type: ignore[override]
        """Return the microbatches."""
        return self._fetch()

    @not_converted
    def reduce_mean(self) -> tf.Tensor:
        """Return the mean over the microbatches."""
        return self._total / tf.cast(self._count, self._total.dtype)

    @not_converted
    def reduce_sum(self) -> tf.Tensor:
        """Return the sum over the microbatches."""
        return self._total

    def _mean_gradient(self) -> Any:
        return self.reduce_mean()

    def __repr__(self) -> str:
        # `outputs` would have the step keep every microbatch, only to print them.
        return f"SummedOutput({self._total!r})"


def _sum(outputs: Sequence[Any]) -> tf.Tensor:
    # One by one and in order, so that the last bits are the same on all ranks.
    total = tf.convert_to_tensor(outputs[0])
    for output in outputs[1:]:
        total += tf.convert_to_tensor(output)
    return total
