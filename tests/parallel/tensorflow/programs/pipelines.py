"""Models trained for a few steps, over the ranks of a pipeline and in one process; both return the same figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import models
import msgspec
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_parallel.tensorflow.model_parallel import state

STEPS = 3
# The size of a microbatch in `in_all_ways`. It is the same in all ways, so a step is traced once for all of them.
MICROBATCH = 2


def in_all_ways(name: str, placements: list[list[int]], ways: list[tuple[str, int]]) -> list[list[Any]]:
    """Train the same model, from the same weights, in each placement with each of (pipeline, microbatches)."""
    figures: list[list[Any]] = []
    for placement in placements:
        training = Training(name, placement)
        rank_state = state.get()
        figures.append([])
        for pipeline, microbatches in ways:
            changed = {"pipeline": pipeline, "microbatches": microbatches, "active_microbatches": 3}
            rank_state.settings = msgspec.structs.replace(rank_state.settings, **changed)
            figures[-1].append(training.run(MICROBATCH * microbatches))
        another_job()
    return figures


def together(name: str, placement: list[int], in_graph: bool = True) -> Any:
    """Train on this rank's part of the pipeline; return the figures of `alone`, and this rank's variables."""
    return Training(name, placement, in_graph).run(models.BATCH)


class Training:
    """A model on this rank's part of the pipeline; `run` may train it several times."""

    def __init__(self, name: str, placement: list[int], in_graph: bool = True) -> None:
        smp.init()
        self._case = models.CASES[name]
        keras.utils.set_random_seed(1)
        self._model = self._case.distributed(placement)
        self._first: list[Any] = []
        smp.register_post_partition_hook(
            lambda: self._first.extend(np.array(variable.value) for variable in self._model.variables)
        )
        self._train = tf.function(self._one_step) if in_graph else self._one_step
        self._optimizer = keras.optimizers.SGD(0.1)
        self._step = smp.step(self._gradients)

    def _gradients(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = self._model(inputs, training=True)
            loss = self._case.loss(labels, outputs)
        return tape.gradient(loss, self._model.trainable_variables), loss, outputs

    def _one_step(self, inputs: Any, labels: Any) -> Any:
        gradients, loss, outputs = self._step(inputs, labels)
        gradients = [gradient.accumulate() for gradient in gradients]
        # A partition may have operations only, and Keras refuses an empty list.
        if gradients:
            self._optimizer.apply_gradients(zip(gradients, self._model.trainable_variables, strict=True))
        merged = tf.nest.map_structure(lambda output: output.merge(), outputs)
        return loss.reduce_mean(), gradients, merged

    def run(self, batch: int) -> Any:
        """Train for some steps on batches of this size, starting from the first weights."""
        model = self._model
        for variable, value in zip(model.variables if self._first else (), self._first, strict=True):
            variable.assign(value)
        figures: dict[str, Any] = {"losses": [], "outputs": [], "gradients": []}
        for inputs, labels in _batches(self._case, batch):
            loss, gradients, outputs = self._train(inputs, labels)
            figures["losses"].append(float(loss))
            figures["outputs"].append([np.array(output) for output in tf.nest.flatten(outputs)])
            own_gradients = zip(model.trainable_variables, gradients, strict=True)
            figures["gradients"].append(
                {_name(variable, model): np.array(tf.convert_to_tensor(g)) for variable, g in own_gradients}
            )
        figures["weights"] = {_name(variable, model): np.array(variable.value) for variable in model.variables}
        figures["all"] = [_name(variable, model) for variable in model.all_variables()]
        figures["peak_live"] = state.get().peak_live
        return figures


def alone(name: str, batches: list[tuple[int, int]]) -> list[Any]:
    """Train the same model in this process, with plain Keras, on the same microbatches: (batch, microbatches)."""
    case = models.CASES[name]
    keras.utils.set_random_seed(1)
    model = case.plain()
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def backward(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = case.loss(labels, outputs)
        return tape.gradient(loss, model.trainable_variables), loss, outputs

    # The first call creates the variables: every training starts with these values.
    model(next(_batches(case, 1))[0])
    first = [np.array(variable.value) for variable in model.variables]
    everything = []
    for batch, microbatches in batches:
        for variable, value in zip(model.variables, first, strict=True):
            variable.assign(value)
        figures: dict[str, Any] = {"losses": [], "outputs": [], "gradients": []}
        for inputs, labels in _batches(case, batch):
            results = [backward(*_part((inputs, labels), microbatches, number)) for number in range(microbatches)]
            gradients = [
                sum(map(tf.convert_to_tensor, parts)) / microbatches
                for parts in zip(*(result[0] for result in results), strict=True)
            ]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            figures["losses"].append(float(sum(result[1] for result in results) / microbatches))
            outputs = [tf.nest.flatten(result[2]) for result in results]
            figures["outputs"].append([np.concatenate(parts) for parts in zip(*outputs, strict=True)])
            own_gradients = zip(model.trainable_variables, gradients, strict=True)
            figures["gradients"].append(
                {_name(variable, model): np.array(gradient) for variable, gradient in own_gradients}
            )
        figures["weights"] = {_name(variable, model): np.array(variable.value) for variable in model.variables}
        everything.append(figures)
    return everything


def _batches(case: models.Case, batch: int) -> Iterator[Any]:
    for whole in case.batches(STEPS):
        yield tf.nest.map_structure(lambda leaf: leaf[:batch], whole)


def _part(batch: Any, parts: int, number: int) -> Any:
    return tf.nest.map_structure(lambda whole: np.split(whole, parts)[number], batch)


def another_job() -> None:
    """Drop the state of this job except for its settings and its connections."""
    before = state.get()
    state._state = state.State(
        settings=before.settings,
        grid=before.grid,
        rank=before.rank,
        local_rank=before.local_rank,
        local_size=before.local_size,
        transport=before.transport,
        replicas=before.replicas,
        steps=before.steps,
        patches=before.patches,
    )
    keras.backend.clear_session()


def _name(variable: Any, model: Any) -> str:
    """Return a variable's number in the whole model and its own name."""
    # Its path would differ: Keras numbers layers over all models of a process.
    everything = model.all_variables() if hasattr(model, "all_variables") else model.variables
    number = next(n for n, other in enumerate(everything) if other is variable)
    return f"{number}:{variable.name}"


def owners(name: str, placement: list[int]) -> Any:
    """Train with an automatic partition; return the figures of `together`, and the partition of each variable."""
    figures = together(name, placement)
    rank_state = state.get()
    assert rank_state.model is not None
    return figures, [rank_state.owner_of(variable) for variable in rank_state.model.all_variables()]
