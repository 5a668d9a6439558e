"""`Training` for Keras's `fit`, of which it is a callback, and for loops of one's own.

A state is restored where it was saved, so it does not matter in which order callbacks are called:

    saved                                       restored
    "batch"  before a batch                     on_train_batch_begin of the first one
    "epoch"  before an epoch                    on_epoch_begin
    "end"    when `fit` ends                    on_train_begin, and the callbacks' numbers on_epoch_begin
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.stops import no_more, stop_when_asked
from herringbone_parallel.position.parts import Attributes
from herringbone_parallel.position.training import Found, Peers, Saver
from herringbone_parallel.tensorflow.position import ranks
from herringbone_parallel.tensorflow.position.parts import AllRandom, TensorFlowVariables, part_of
from herringbone_parallel.tensorflow.position.samples import Samples

_METRICS, _OPTIMIZER, _RANDOM = ".metrics", ".optimizer", ".random"


class Training(keras.callbacks.Callback):
    """The parts of a training, with the place of its data and its random numbers.

        data = Samples(len(images), lambda indices, seeds: (images[indices], labels[indices]), batch_size=32)
        model.fit(data, epochs=3, callbacks=[Training(data=data, every=100)])

    As a callback it goes on from the newest checkpoint when `fit` begins, and saves after each epoch and after `every`
    steps. Callbacks with a state of their own are parts, too: `Training(data=data, plateau=plateau)`. In a loop of your
    own:

        training = Training(model=model, optimizer=optimizer, data=data)
        training.resume()
        for epoch in range(training.epoch, 3):
            for batch in data:
                step(batch)
                if training.step % 100 == 0:
                    training.save()

    `folder` is `SM_CHECKPOINT_DIR` by default. Every rank makes, saves and resumes. When the job is asked to go, it
    saves between two batches, and ends the script. Raises `ParallelError` for a part that cannot be saved, or that a
    checkpoint does not fit.
    """

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, every: int | None = None, **parts: Any) -> None:
        super().__init__()
        if keras.backend.backend() != "tensorflow":
            raise ParallelError(f"Training works with Keras on TensorFlow, and this is on {keras.backend.backend()}")
        if every is not None and every < 1:
            raise ParallelError(f"every={every}: the number of steps between two checkpoints")
        self._every, self._given = every, parts
        self._saver = Saver(folder, {}, f"tensorflow {tf.__version__}")
        self._data = next((part for part in parts.values() if isinstance(part, Samples)), None)
        self._optimizers = [part for part in parts.values() if isinstance(part, keras.optimizers.Optimizer)]
        # What is restored in the first epoch.
        self._found: Found | None = None
        self._first_epoch: int | None = None
        self._unsaved, self._saved_step = 0, -1
        for name, part in parts.items():
            self._saver.parts[name] = part_of(name, part, self._build)
        self._saver.parts[_RANDOM] = AllRandom()
        if (data := self._data) is not None:
            data.counters = self._counters
            data.between_steps = partial(stop_when_asked, self._save_last, lambda: not data.is_ahead())
        if model := next((part for part in parts.values() if isinstance(part, keras.Model)), None):
            self.set_model(model)

    @property
    def step(self) -> int:
        """The completed steps of the first optimizer."""
        return int(self._optimizers[0].iterations.numpy()) if self._optimizers else 0

    @property
    def epoch(self) -> int:
        """The epoch to go on in."""
        return 0 if self._data is None else self._data.order.place()[0]

    def save(self, tag: str | None = None) -> None:
        """Save the checkpoint `step-<step>`, or of another tag; every rank calls, after a step."""
        if self._data is not None and self._data.is_ahead():
            raise ParallelError(
                "the batch that the loop took last waits for a step of the optimizer: save after the step, because no"
                " checkpoint has gradients. Those that an optimizer accumulates itself (gradient_accumulation_steps) do"
                " not wait"
            )
        self._save("epoch" if self._data is None or not self._data.order.used else "batch", tag)

    def resume(self, tag: str | None = None) -> bool:
        """Go on from the newest complete checkpoint, or that of a tag; every rank calls, before the first step.

        Returns False, and changes nothing, where no rank finds a checkpoint. In `fit`, nobody needs to call it.
        """
        found = self._saver.find(tag, self._peers())
        if found is not None:
            self._put(found)
        return found is not None

    # Keras calls these.

    def set_model(self, model: Any) -> None:
        """Take the model of `fit`, with its optimizer and metrics."""
        super().set_model(model)
        parts = self._saver.parts
        if all(one is not model for one in self._given.values()):
            parts["model"] = part_of("model", model, self._build)
        if model.compiled:
            parts[_METRICS] = TensorFlowVariables(_METRICS, lambda: model.metrics_variables, self._build)
            if all(one is not model.optimizer for one in self._optimizers):
                parts[_OPTIMIZER] = part_of(_OPTIMIZER, model.optimizer, self._build)
                self._optimizers.append(model.optimizer)
        # The last one, because to make variables draws numbers.
        parts[_RANDOM] = parts.pop(_RANDOM)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature, here and below
        """Go on from the newest checkpoint."""
        if self._data is None:
            raise ParallelError("fit knows no place in its data: give it Samples(...), and Training(data=...) the same")
        if self._first_epoch is not None:
            raise ParallelError("a Training is for one fit: make another one, with another folder, for the next")
        self._first_epoch = -1
        batches = len(self._data)
        if self._data.order.before or self.params.get("steps") != batches:
            raise ParallelError(
                f"fit(steps_per_epoch={self.params.get('steps')}) of {batches} batches, or resume() before it: leave"
                " both out; fit itself goes on in the middle of an epoch"
            )
        self._found = self._saver.find(None, self._peers())
        if self._found is not None:
            self._put(self._found)
            is_over = self._found.extra.get("stopped")
            self.model._initial_epoch = self.params["epochs"] if is_over else self.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Restore, or save what is between two epochs."""
        assert self._data is not None
        order, found = self._data.order, self._found
        is_first, self._first_epoch = self._first_epoch == -1, epoch
        if is_first and found is None:
            order.epoch = epoch
        if order.epoch != epoch:
            raise ParallelError(
                f"fit begins epoch {epoch}, and the data is in epoch {order.epoch}: leave out initial_epoch, and"
                " BackupAndRestore, which goes on from another place"
            )
        if not is_first:
            self._save("epoch")
        if found is not None and not order.before:
            self._put(found, only=Attributes if found.extra["moment"] == "end" else object)
            self._found = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Restore, or save what is between two steps."""
        assert self._data is not None
        if self._found is not None:
            self._put(self._found)
            self._found = None
        elif self._every is not None and self._unsaved >= self._every and self._data.order.used < len(self._data):
            self._save("batch")
        if self._data.order.used:
            stop_when_asked(self._save_last)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Count steps; with `steps_per_execution`, several at once."""
        assert self._data is not None
        used = min(batch + 1, len(self._data))
        self._unsaved += used - self._data.order.used
        self._data.order.used = used

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Go on with the next epoch, unless `stop_training` ended this one early."""
        assert self._data is not None
        if self._data.order.used == len(self._data):
            self._data.order.end()

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Save the last state."""
        if self._first_epoch != -1:
            self._save("end")
        no_more()

    def _save_last(self) -> None:
        """Save, unless this step is saved."""
        if self.step != self._saved_step:
            self._save("batch")

    def _save(self, moment: str, tag: str | None = None) -> None:
        extra = {"step": self.step, "epoch": self.epoch, "moment": moment}
        extra["stopped"] = moment == "end" and bool(self.model.stop_training)
        self._saver.save(tag or f"step-{self.step}", extra, self._peers())
        self._unsaved, self._saved_step = 0, self.step

    def _put(self, found: Found, only: type = object) -> None:
        names = [name for name, part in self._saver.parts.items() if isinstance(part, only)]
        self._saver.put(found, names, self._peers())

    def _peers(self) -> Peers:
        return ranks.peers(getattr(self._model, "distribute_strategy", None))

    def _counters(self) -> list[Any]:
        """Return what each call of the optimizer changes, without waiting for the device."""
        if not self._optimizers:
            raise ParallelError("the data has no optimizer beside it, whose steps tell which samples are used: give it")
        first = self._optimizers[0]
        changed = [getattr(first, "inner_optimizer", first)._iterations]
        # A loss scale may pass over a step, whose samples are used all the same.
        changed += [getattr(first, name) for name in ("step_counter", "dynamic_scale") if hasattr(first, name)]
        return [tf.identity(variable.value) for variable in changed]

    def _build(self) -> None:
        """Make the variables that the first step would make."""
        model = self._model
        if model is None:
            return
        if self._data is not None and (model.compiled or not model.built):
            batch = self._data[0]
            model.test_on_batch(*batch) if model.compiled else model(batch[0])
        for optimizer in self._optimizers:
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
