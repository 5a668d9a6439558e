"""What `model.fit` calls between batches and epochs on every rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from herringbone_parallel.reduce import agree
from herringbone_parallel.tensorflow import state
from herringbone_parallel.tensorflow.variables import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the model's and the optimizer's variables of rank `root_rank`.

        model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

    That is before the first batch if all variables exist by then, else after it. Ranks that have equal ones already, as
    with the same seed, send nothing.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:  # noqa: ARG002 - values travel from where they are
        super().__init__()
        self._root_rank = root_rank
        self._done = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast, once, what exists already."""
        if not self._done and self.model.built and self.model.optimizer.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast, once, what the first batch has made."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_variables([*self.model.variables, *self.model.optimizer.variables], self._root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the epoch's metrics over all ranks, for the callbacks behind it in the list.

    model.fit(..., callbacks=[hvd.callbacks.MetricAverageCallback(), keras.callbacks.ReduceLROnPlateau()])
    """

    def __init__(self, device: str = "") -> None:  # noqa: ARG002
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Put the averages in place of this rank's own metrics."""
        engine = state.get().engine
        if not logs or engine.size == 1:
            return
        names = sorted(logs)
        agree(engine, "the metrics of an epoch", "\n".join(names))
        values = np.array([float(logs[name]) for name in names])
        engine.all_reduce(values, op="average").wait()
        logs.update(zip(names, values.tolist(), strict=True))
