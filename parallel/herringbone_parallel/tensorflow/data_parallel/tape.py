"""A `tf.GradientTape` that averages gradients over all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.aggregation import aggregate
from herringbone_parallel.tensorflow.data_parallel.compression import Compression
from herringbone_parallel.tensorflow.data_parallel.gradients import (
    ReduceOp,
    ReduceOptions,
    reduce_gradients,
    refuse_devices,
)
from herringbone_parallel.tensorflow.data_parallel.reduction import not_converted


class DistributedGradientTape:
    """Wraps a tape: `gradient` returns averages over all ranks.

        with tf.GradientTape() as tape:
            loss = loss_of(model(images, training=True), labels)
        tape = sdp.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)

    In a `tf.function` the sums travel while the backward pass runs. With the setting `aggregation_frequency` (n) of the
    job's `distribution`, the n-th pass returns the average of all n passes. The passes before it return zeros, and
    Keras's optimizers skip their step. All other attributes are those of the wrapped tape.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = ReduceOp.AVERAGE,
    ) -> None:
        refuse_devices(device_dense=device_dense, device_sparse=device_sparse)
        self._tape = gradtape
        self._options = ReduceOptions(compression, op, sparse_as_dense)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._tape.__exit__(*failure)

    # Called only for names that this class lacks: `watch`, `stop_recording`, `jacobian`.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @not_converted
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients, averaged or summed over all ranks, in the structure of `sources`."""
        local = tf.nest.flatten(self._tape.gradient(target, sources, *args, **kwargs))
        variables = tf.nest.flatten(sources)
        reduce = aggregate if state.get().aggregation.every > 1 else reduce_gradients
        return tf.nest.pack_sequence_as(sources, reduce(local, variables, self._options))
