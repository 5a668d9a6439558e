"""`with smp.partition(index)`: which partition layers and operations belong to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.placement.trace import recorder


@contextmanager
def partition(index: int) -> Iterator[None]:
    """Put what happens in the `with` block on a partition; the innermost one counts.

        class Net(smp.DistributedModel):
            def call(self, images):
                with smp.partition(0):
                    hidden = self.first(images)
                with smp.partition(1):
                    return self.second(hidden)

    In a model's `call` it is for layers that are called and operations. Elsewhere it is for layers that are made, as in
    functional and Sequential models. What is in no `with` goes to the setting `default_partition`. With
    `auto_partition` it says nothing. Source: SMP v1, `smp.partition`.
    """
    here = state.get()
    partitions = here.settings.partitions
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < partitions:
        raise ParallelError(f"smp.partition({index!r}): with partitions={partitions} it is 0 to {partitions - 1}")
    watcher = recorder()
    if watcher is not None:
        with watcher.stretch(partition=index):
            yield
        return
    make = keras.layers.Layer.__init__

    def make_in_partition(layer: Any, *args: Any, **kwargs: Any) -> None:
        here.made_in[id(layer)] = layer, index
        make(layer, *args, **kwargs)

    keras.layers.Layer.__init__ = make_in_partition
    try:
        yield
    finally:
        keras.layers.Layer.__init__ = make
