"""Models trained for a few steps, over the ranks of a pipeline and in one process: both tell the same figures."""

from __future__ import annotations

from typing import Any

import keras
import models
import msgspec
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_parallel.tensorflow import state

STEPS = 5


def in_many_ways(name: str, settings: list[tuple[str, int, list[int]]]) -> list[Any]:
    """Train the same model with each of these pipelines, numbers of microbatches, and placements."""
    told = []
    for pipeline, microbatches, placement in settings:
        smp.init()
        here = state.get()
        changed = {"pipeline": pipeline, "microbatches": microbatches, "active_microbatches": 3}
        here.settings = msgspec.structs.replace(here.settings, **changed)
        told.append(together(name, placement))
        # The connections stay; all else is that of another job.
        fresh = state.State(
            here.settings, here.grid, here.rank, here.local_rank, here.local_size, here.transport, steps=here.steps
        )
        state._state = fresh
        keras.backend.clear_session()
    return told


def together(name: str, placement: list[int], in_graph: bool = True) -> Any:
    """Train on this rank's part of the pipeline; return what `alone` does, and which variables are here."""
    smp.init()
    case = models.CASES[name]
    keras.utils.set_random_seed(1)
    model = case.distributed(placement)
    optimizer = keras.optimizers.SGD(0.1)

    @smp.step
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = case.loss(labels, outputs)
        return tape.gradient(loss, model.trainable_variables), loss, outputs

    def train(inputs: Any, labels: Any) -> Any:
        gradients, loss, outputs = step(inputs, labels)
        gradients = [gradient.accumulate() for gradient in gradients]
        # A partition may have operations only.
        if gradients:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        merged = tf.nest.map_structure(lambda output: output.merge(), outputs)
        return loss.reduce_mean(), gradients, merged

    run = tf.function(train) if in_graph else train
    told: dict[str, Any] = {"losses": [], "outputs": [], "gradients": []}
    for inputs, labels in case.batches(STEPS):
        loss, gradients, outputs = run(inputs, labels)
        told["losses"].append(float(loss))
        told["outputs"].append([np.array(output) for output in tf.nest.flatten(outputs)])
        told["gradients"].append(
            {
                _name(variable, model): np.array(g)
                for variable, g in zip(model.trainable_variables, gradients, strict=True)
            }
        )
    told["weights"] = {_name(variable, model): np.array(variable.value) for variable in model.variables}
    told["all"] = [_name(variable, model) for variable in model.all_variables()]
    told["peak_live"] = state.get().peak_live
    return told


def alone(name: str, microbatches: int) -> Any:
    """Train the same model on the same microbatches in this process, with plain Keras."""
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

    told: dict[str, Any] = {"losses": [], "outputs": [], "gradients": []}
    for inputs, labels in case.batches(STEPS):
        results = []
        for index in range(microbatches):
            part = tf.nest.map_structure(lambda whole: np.split(whole, microbatches)[index], (inputs, labels))  # noqa: B023
            results.append(backward(*part))
        gradients = [
            sum(map(tf.convert_to_tensor, parts)) / microbatches
            for parts in zip(*(result[0] for result in results), strict=True)
        ]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        told["losses"].append(float(sum(result[1] for result in results) / microbatches))
        outputs = [tf.nest.flatten(result[2]) for result in results]
        told["outputs"].append([np.concatenate(parts) for parts in zip(*outputs, strict=True)])
        told["gradients"].append(
            {
                _name(variable, model): np.array(g)
                for variable, g in zip(model.trainable_variables, gradients, strict=True)
            }
        )
    told["weights"] = {_name(variable, model): np.array(variable.value) for variable in model.variables}
    return told


def _name(variable: Any, model: Any) -> str:
    """Return a variable's number in the whole model and its own name: layers count on over models of one process."""
    everything = model.all_variables() if hasattr(model, "all_variables") else model.variables
    number = next(n for n, other in enumerate(everything) if other is variable)
    return f"{number}:{variable.name}"


def owners(name: str, placement: list[int]) -> Any:
    """Train with an automatic partition; return what `together` does, and each variable's partition."""
    told = together(name, placement)
    here = state.get()
    assert here.model is not None
    return told, [here.owner_of(variable) for variable in here.model.all_variables()]
