"""Models that are trained over ranks, saved as a whole, and loaded without this library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf
from pipeline_mistakes import error_of


def saved(name: str, placement: list[int], folder: str) -> Any:
    """Save after each of two steps, and train a third; return how far the loaded models predict from the split one."""
    smp.init()
    case = models.CASES[name]
    keras.utils.set_random_seed(1)
    model = case.distributed(placement)
    optimizer = keras.optimizers.SGD(0.1)

    @smp.step
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = case.loss(labels, model(inputs, training=True))
        return tape.gradient(loss, model.trainable_variables), loss

    @smp.step
    def predict(inputs: Any) -> Any:
        return model(inputs, training=False)

    batches = list(case.batches(3))

    def train(inputs: Any, labels: Any) -> float:
        gradients, loss = step(inputs, labels)
        gradients = [gradient.accumulate() for gradient in gradients]
        if gradients:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return float(loss.reduce_mean())

    differences = []
    for number, (inputs, labels) in enumerate(batches[:2]):
        train(inputs, labels)
        path = Path(folder) / str(number)
        model.save_model(str(path)) if number else model.save(path)
        split = [np.array(output.merge()) for output in tf.nest.flatten(predict(inputs))]
        if smp.rank() == 0:
            loaded = tf.nest.flatten(keras.layers.TFSMLayer(path, call_endpoint="serve")(inputs))
            differences += [float(np.abs(np.array(a) - b).max()) for a, b in zip(loaded, split, strict=True)]
            served = keras.layers.TFSMLayer(path, call_endpoint="serving_default")
            if len(tf.nest.flatten(inputs)) == 1:
                answer = served(tf.nest.flatten(inputs)[0][:3])["output_0"]
                differences.append(float(np.abs(np.array(answer) - split[0][:3]).max()))
    return differences, train(*batches[2])


def mistakes(folder: str) -> list[str]:
    """Return the errors for saving too early, into a folder that cannot be created, as a Keras file, and alone."""
    smp.init()
    case = models.CASES["dense"]
    model = case.distributed([0, 1])

    @smp.step
    def predict(inputs: Any) -> Any:
        return model(inputs, training=False)

    messages = []
    inputs, _ = next(case.batches(1))
    (Path(folder) / "file").touch()
    for prepare, path in (
        (lambda: None, "early"),
        (lambda: predict(inputs), "file/below"),
        (lambda: None, "model.keras"),
    ):
        prepare()
        try:
            model.save(f"{folder}/{path}")
        except Exception as error:  # noqa: BLE001
            messages.append(f"{type(error).__name__}: {error}")
    # Last, because no call of these ranks meets another one afterwards.
    messages.append(error_of(smp.barrier if smp.rank() else lambda: model.save_weights(f"{folder}/last.weights.h5")))
    return messages


def past_the_split_model(folder: str) -> tuple[dict[str, str], list[str], float, int]:
    """Use the wrapped model by itself, before and after the first step; return the errors of each use after it.

    The second result has the errors of what reads this rank's own weights, or nothing. The others are a weight of this
    rank that was set, and the size of another rank's.
    """
    smp.init()
    keras.utils.set_random_seed(1)
    case = models.CASES["sequential"]
    model = case.distributed([0, 1])
    inner, (inputs, _) = model.module, next(case.batches(1))
    inner.predict(inputs, verbose=0)
    traced = tf.function(inner)
    traced(inputs)
    model.predict(inputs, verbose=0)
    path = f"{folder}/{smp.rank()}"
    other = next(v for v in model.all_variables() if all(v is not local for local in model.variables))
    uses: dict[str, Any] = {
        "predict": lambda: inner.predict(inputs, verbose=0),
        "call": lambda: inner(inputs),
        "weights": inner.get_weights,
        "numpy": other.numpy,
        "gather": lambda: tf.gather(other.value, [0]),
        "sum": lambda: other.value.assign_add(tf.ones(other.shape)),
        "rows": lambda: other.value.scatter_nd_update([[0]], tf.ones([1, *other.shape[1:]])),
        "slice": lambda: other.value[:1].assign(tf.ones([1, *other.shape[1:]])),
        "save": lambda: inner.save(f"{path}.keras"),
        "save_model": lambda: keras.saving.save_model(model, f"{path}.keras"),
        "save_weights": lambda: inner.save_weights(f"{path}.weights.h5"),
        "export": lambda: inner.export(f"{path}/export", verbose=False),
        "export of the split model": lambda: model.export(f"{path}/export"),
        "saved_model": lambda: tf.saved_model.save(inner, f"{path}/saved"),
        "checkpoint": lambda: tf.train.Checkpoint(model=inner).write(f"{path}/checkpoint"),
        "checkpoint of the split model": lambda: tf.train.Checkpoint(model=model).save(f"{path}/checkpoint"),
        "traced": lambda: traced(inputs),
    }
    errors = {name: error_of(use) for name, use in uses.items()}
    served = [
        error_of(lambda: [variable.numpy() for variable in model.variables]),
        error_of(lambda: [repr(variable) + repr(variable.value) for variable in model.all_variables()]),
        error_of(lambda: model.save_weights(f"{folder}/last.weights.h5")),
        error_of(lambda: model.predict(inputs, verbose=0)),
    ]
    # Neither the file, nor weights that a script sets on every rank, leave values of another rank here.
    inner.set_weights([np.ones(variable.shape) for variable in model.all_variables()])
    # The split model takes those of the whole model, too, or those of this rank.
    model.set_weights(model.get_weights())
    model.set_weights([np.full(variable.shape, 2.0) for variable in model.variables])
    model.set_weights([np.full(variable.shape, 3.0) for variable in model.all_variables()])
    left = tf.raw_ops.ReadVariableOp(resource=other.value.handle, dtype=tf.float32)
    return errors, served, float(model.variables[0].numpy().mean()), int(tf.size(left))
