"""What a step returns: one `StepOutput` per tensor, holding its microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from herringbone_contract.errors import ParallelError

_METHODS = ("variable", "add_n", "accumulate_n")


class StepOutput:
    """A tensor that the step function returned, once per microbatch.

    loss = train_step(images, labels)
    loss.reduce_mean()      # a tensor: the mean over the microbatches
    loss.outputs            # the list, by microbatch
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> tf.Tensor:
        """Return the mean over the microbatches."""
        first = tf.convert_to_tensor(self.outputs[0])
        summable = first.dtype.is_floating or first.dtype.is_complex
        # The mean of counts is not a count.
        outputs = self.outputs if summable else [tf.cast(output, tf.float32) for output in self.outputs]
        return _sum(outputs) / tf.cast(len(outputs), outputs[0].dtype)

    def reduce_sum(self) -> tf.Tensor:
        """Return the sum over the microbatches."""
        return _sum(self.outputs)

    def concat(self) -> tf.Tensor:
        """Return the microbatches joined along axis 0, in order."""
        return tf.concat(self.outputs, axis=0)

    def merge(self) -> tf.Tensor:
        """Return the batch again: the microbatches joined along axis 0. Source: SMP v1 for TensorFlow."""
        return self.concat()

    def stack(self) -> tf.Tensor:
        """Return the microbatches stacked along a new axis 0, in order."""
        return tf.stack(self.outputs)

    def accumulate(self, method: str = "variable", var: Any = None) -> tf.Tensor:
        """Return the mean over the microbatches, added up one by one: the gradient of the whole batch.

            gradients = [gradient.accumulate() for gradient in gradients]

        `var` is a variable of that shape to add up in; `method` is one of SMP v1's, which differed in memory and here
        do not. Source: SMP v1 for TensorFlow, `StepOutput.accumulate`.
        """
        if method not in _METHODS:
            raise ParallelError(f"StepOutput.accumulate(method={method!r}): it is one of {', '.join(_METHODS)}")
        mean = self.reduce_mean()
        if var is None:
            return mean
        var.assign(mean)
        return tf.convert_to_tensor(var)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


class SummedOutput(StepOutput):
    """A tensor whose microbatches were added up as they came: a gradient, in a `tf.function`.

    `fetch` returns them one by one, for whoever asks: they then have to be kept.
    """

    def __init__(self, total: Any, count: int, fetch: Callable[[], list[Any]]) -> None:
        self._total, self._count, self._fetch = total, count, fetch

    @property
    def outputs(self) -> list[Any]:  # type: ignore[override]
        """The microbatches."""
        return self._fetch()

    def reduce_mean(self) -> tf.Tensor:
        """Return the mean over the microbatches."""
        return self._total / tf.cast(self._count, self._total.dtype)

    def reduce_sum(self) -> tf.Tensor:
        """Return the sum over the microbatches."""
        return self._total

    def __repr__(self) -> str:
        return f"SummedOutput({self._total!r})"


def _sum(outputs: Sequence[Any]) -> tf.Tensor:
    total = tf.convert_to_tensor(outputs[0])
    for output in outputs[1:]:
        total += tf.convert_to_tensor(output)
    return total
