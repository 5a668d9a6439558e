"""A callback for Keras's `fit` that sends metrics, progress and step times to the job's events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

from herringbone_contract.events import emit
from herringbone_contract.events.format import KERAS
from herringbone_contract.events.script import log_progress
from herringbone_contract.events.steps import tick

# To read a metric waits for the device, so it is done this often.
_SECONDS = 1.0


class JobMetrics(keras.callbacks.Callback):
    """Sends what `fit` reports: metrics about once a second and at the end of each epoch, progress, and step times.

        model.fit(images, labels, callbacks=[JobMetrics()])

    Metrics have Keras's names, such as `loss` and `val_loss`; within an epoch their values are means since its begin.
    The step is the number of batches since the begin of `fit`. Rank 0 sends metrics and progress, every rank its step
    times. Outside a job nothing happens. Works with each backend of Keras 3.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._sent = 0.0
        # Batches since the begin of `fit`, and their number in an epoch, if it is known.
        self._batches = 0
        self._in_epoch: int | None = None
        self._is_first = emit.rank() in (None, 0)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature, here and below
        """Begin to count."""
        self._batches, self._sent = 0, self._clock()
        self._in_epoch = self.params.get("steps")
        self._send_progress(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Count a step, and once a second send what is known."""
        self._batches += 1
        tick(self)
        if self._clock() - self._sent >= _SECONDS:
            self._send(logs)
            if self._in_epoch is not None:
                self._send_progress(self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Send the metrics of the epoch, with those of the validation."""
        self._send(logs)
        self._send_progress(epoch + 1 if self._in_epoch is None else self._batches)

    def _send(self, logs: Any) -> None:
        self._sent = self._clock()
        if self._is_first:
            for name, value in (logs or {}).items():
                emit.metric(name, value, self._batches, source=KERAS)

    def _send_progress(self, done: int) -> None:
        if not self._is_first:
            return
        epochs = self.params.get("epochs")
        if self._in_epoch is None:
            log_progress(done, epochs, unit="epoch")
        else:
            log_progress(done, epochs and epochs * self._in_epoch)
