"""`with smp.partition(index)`: puts layers and operations on a partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.placement.trace import recorder
from herringbone_parallel.tensorflow.model_parallel.state import CreatedLayer


@contextmanager
def partition(index: int) -> Iterator[None]:
    """Put the layers and operations of the `with` block on a partition; the innermost block counts.

        class Net(smp.DistributedModel):
            def call(self, images):
                with smp.partition(0):
                    hidden = self.first(images)
                with smp.partition(1):
                    return self.second(hidden)

    In a model's `call` it places the layers that are called and the operations. Elsewhere it places the layers that are
    created, as in functional and Sequential models. Layers outside any block go to the setting `default_partition`.
    With `auto_partition` it has no effect. Source: SMP v1, `smp.partition`.
    """
    rank_state = state.get()
    partitions = rank_state.settings.partitions
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < partitions:
        raise ParallelError(f"smp.partition({index!r}): with partitions={partitions} it is 0 to {partitions - 1}")
    active_recorder = recorder()
    if active_recorder is not None:
        with active_recorder.stretch(partition=index):
            yield
        return
    create = keras.layers.Layer.__init__

    def create_in_partition(layer: Any, *args: Any, **kwargs: Any) -> None:
        # Before Keras's constructor, which may create inner layers in an inner block.
        rank_state.made_in[id(layer)] = CreatedLayer(layer, index)
        create(layer, *args, **kwargs)

    keras.layers.Layer.__init__ = create_in_partition
    try:
        yield
    finally:
        keras.layers.Layer.__init__ = create
