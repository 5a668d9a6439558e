"""Training that is saved, lost and resumed, on one or several partitions."""

from __future__ import annotations

import os
import signal
from typing import Any

import keras
import models
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_contract.errors import ParallelError


class Training:
    """A model, its optimizer and a counter of steps, with a manager for their checkpoints."""

    def __init__(self, name: str, placement: list[int], folder: str, optimizer: str, kept: int | None = None) -> None:
        smp.init()
        keras.utils.set_random_seed(1)
        self.case = models.CASES[name]
        self.model = self.case.distributed(placement)
        self.optimizer = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
        self.steps = tf.Variable(0)
        checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, steps=self.steps)
        self.manager = smp.CheckpointManager(checkpoint, folder, max_to_keep=kept)

        @smp.step
        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.case.loss(labels, self.model(inputs, training=True))
            return tape.gradient(loss, self.model.trainable_variables), loss

        self.step = step

    def train(self, inputs: Any, labels: Any) -> float:
        gradients, loss = self.step(inputs, labels)
        if gradients:
            own = self.model.trainable_variables
            self.optimizer.apply_gradients(zip([g.accumulate() for g in gradients], own, strict=True))
        self.steps.assign_add(1)
        return float(loss.reduce_mean())


def undisturbed(name: str, placement: list[int], folder: str, optimizer: str, count: int, saved: int) -> Any:
    """Train `count` steps, with a checkpoint after step `saved`; return the losses, and the path of the checkpoint."""
    training = Training(name, placement, folder, optimizer)
    losses, path = [], ""
    for number, batch in enumerate(training.case.batches(count), 1):
        losses.append(training.train(*batch))
        if number == saved:
            path = training.manager.save()
    return losses, path


def taken_up(name: str, placement: list[int], folder: str, optimizer: str, count: int) -> Any:
    """Restore the newest checkpoint before the first step; return the losses of the remaining steps, and its path."""
    training = Training(name, placement, folder, optimizer)
    path = training.manager.restore()
    batches = list(training.case.batches(count))
    # The restored number of steps is known only after the model has been partitioned. A step without gradients does so.
    smp.step(lambda inputs: training.model(inputs))(batches[0][0])
    return [training.train(*batch) for batch in batches[int(training.steps) :]], path


def killed(name: str, placement: list[int], folder: str, optimizer: str) -> None:
    """Save after the second step; rank 1 kills itself in the third."""
    training = Training(name, placement, folder, optimizer)
    for number, batch in enumerate(training.case.batches(5), 1):
        if number == 3 and smp.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        training.train(*batch)
        if number == 2:
            training.manager.save()


def kept(folder: str) -> Any:
    """Save four times and keep two."""
    training = Training("dense", [0, 1], folder, "sgd", kept=2)
    training.train(*next(training.case.batches(1)))
    paths = [training.manager.save() for _ in range(4)]
    assert training.manager.latest_checkpoint == paths[-1]
    reader = tf.train.load_checkpoint(paths[-1])
    first = training.model.variables[0]
    number = [id(variable) for variable in training.model.all_variables()].index(id(first))
    assert np.array_equal(reader.get_tensor(f"model/{number}:{first.path}"), first.numpy())
    return sorted(os.listdir(folder)), sorted(reader.get_variable_to_shape_map())


def refused(folder: str, path: str | None) -> str:
    """Restore a wrong checkpoint after the first step; return the error message."""
    training = Training("dense", [0, 1], folder, "adam")
    training.train(*next(training.case.batches(1)))
    try:
        training.manager.restore(path)
    except ParallelError as error:
        return str(error)
    return ""


def too_early(folder: str) -> str:
    training = Training("dense", [0, 1], folder, "adam")
    try:
        training.manager.save()
    except ParallelError as error:
        return str(error)
    return ""
