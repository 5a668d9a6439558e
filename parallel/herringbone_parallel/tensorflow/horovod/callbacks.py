"""Horovod's callbacks for `model.fit`, which runs them on every rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import agree
from herringbone_parallel.tensorflow.data_parallel import state
from herringbone_parallel.tensorflow.data_parallel.variables import broadcast_variables

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback", "LearningRateWarmupCallback"]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the variables of rank `root_rank`: those of the model and of its optimizer.

        model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

    The broadcast is before the first batch if all variables exist by then, else after it. Nothing is sent if the
    variables are equal already, as with the same seed.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:  # noqa: ARG002 - values travel from their own device
        super().__init__()
        self._root_rank = root_rank
        self._done = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast once, if all variables exist already."""
        if not self._done and self.model.built and self.model.optimizer.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast once, after the first batch has created the variables."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_variables([*self.model.variables, *self.model.optimizer.variables], self._root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks, for the callbacks after it in the list.

    model.fit(..., callbacks=[hvd.callbacks.MetricAverageCallback(), keras.callbacks.ReduceLROnPlateau()])
    """

    def __init__(self, device: str = "") -> None:  # noqa: ARG002
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Replace this rank's metrics by the averages."""
        engine = state.get().engine
        if not logs or engine.size == 1:
            return
        # Sorted: a dict may have another order on another rank.
        names = sorted(logs)
        agree(engine, "the metrics of an epoch", "\n".join(names))
        values = np.array([float(logs[name]) for name in names])
        engine.all_reduce(values, op="average").wait()
        logs.update(zip(names, values.tolist(), strict=True))


class LearningRateWarmupCallback(keras.callbacks.Callback):
    """Raises the learning rate batch by batch over the first epochs, from the rate of one rank to `initial_lr`.

        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=3)

    `steps_per_epoch` is needed if `fit` does not know it, as with a data set of unknown length.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = False,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        if momentum_correction:
            raise ParallelError(
                "momentum_correction: Keras 3 compiles the momentum into the step, where it cannot be changed; leave it"
                " out"
            )
        self._initial, self._epochs, self._steps, self._verbose = initial_lr, warmup_epochs, steps_per_epoch, verbose
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Find the number of batches in an epoch."""
        self._steps = self._steps or (self.params or {}).get("steps")
        if not self._steps:
            raise ParallelError(
                "LearningRateWarmupCallback: `fit` does not know how many batches an epoch has; give steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Remember the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Set the learning rate of this batch."""
        assert self._steps is not None
        progress = (self._epoch + (batch + 1) / self._steps) / self._epochs if self._epochs else 1.0
        # After the warm-up the rate belongs to other callbacks.
        if progress <= 1.0:
            ranks = state.size()
            self.model.optimizer.learning_rate = self._initial / ranks * (progress * (ranks - 1) + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Print a line when the warm-up is over."""
        if self._verbose and state.rank() == 0 and epoch + 1 == round(self._epochs):
            print(f"Epoch {epoch + 1}: the learning rate is {float(self.model.optimizer.learning_rate):g} from now on")
