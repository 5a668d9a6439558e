"""LARS, LAMB and the other recipes, on the variables and models of the tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import aggregation
import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
import training
from keras_compat import as_it_was

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.recipes import api as recipes
from herringbone_parallel.tensorflow.recipes.api import (
    LAMB,
    LARS,
    Schedule,
    ScheduledRate,
    average_batch_norm,
    tune_batch_norm,
)


def steps(
    optimizer: str, settings: dict[str, Any], weights: dict[str, Any], gradients: list[dict[str, Any]], in_graph: bool
) -> list[dict[str, Any]]:
    """Apply the gradients of each step; return the weights after each step."""
    schedule = Schedule(length=6, warmup=2, decay="polynomial", power=2)
    recipe = getattr(recipes, optimizer)(ScheduledRate(0.3, schedule), **settings)
    variables = [keras.Variable(value, name=name.rsplit("/")[-1]) for name, value in weights.items()]
    recipe.build(variables)
    history = []
    for step_gradients in gradients:
        # A weight may have no gradient in a step.
        tensors = [tf.constant(step_gradients[name]) if name in step_gradients else None for name in weights]

        def step(tensors: list[Any] = tensors) -> None:
            recipe.apply_gradients(zip(tensors, variables, strict=True))

        (tf.function(step) if in_graph else step)()
        history.append({name: variable.numpy() for name, variable in zip(weights, variables, strict=True)})
    return history


def trained(at_once: int, scaled: bool) -> Any:
    """Fit four batches, `at_once` of them joined, at rates that change with every step."""
    sdp.init()
    optimizer: Any = LARS(ScheduledRate(0.5, Schedule(length=2, warmup=1)), weight_decay=0.01, trust=0.01)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    net = training.model()
    net.compile(sdp.DistributedOptimizer(optimizer), training.loss_of_fit(), jit_compile=False)
    batches = aggregation._batches(sdp.size(), sdp.rank(), at_once)
    images, labels = (np.stack(parts) for parts in zip(*batches, strict=True))
    net.fit(tf.data.Dataset.from_tensor_slices((images, labels)), verbose=0, shuffle=False)
    return training.weights(net)


# A model-parallel program in this process may have patched `Model.compile`, and then Keras restores no optimizer.
@as_it_was()
def resumed() -> tuple[list[str], Any, Any]:
    """Train three steps, without and with a save and a load in between; return the loaded classes, and both weights."""
    sdp.init()
    images, labels = training.batches(1, 0)

    def fit(net: keras.Model, some: slice) -> None:
        net.fit(tf.data.Dataset.from_tensor_slices((images[some], labels[some])), verbose=0, shuffle=False)

    def new_model() -> keras.Model:
        net = training.model()
        optimizer = LAMB(ScheduledRate(0.01, Schedule(length=3, warmup=2)), weight_decay=0.01)
        net.compile(sdp.DistributedOptimizer(optimizer), training.loss_of_fit(), jit_compile=False)
        return net

    whole, first = new_model(), new_model()
    fit(whole, slice(3))
    fit(first, slice(2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        first.save(path)
        second = keras.models.load_model(path)
    classes = [type(second.optimizer).__name__, type(second.optimizer._learning_rate).__name__]
    fit(second, slice(2, 3))
    return classes, training.weights(whole), training.weights(second)


def excluded() -> list[bool]:
    """Return, for each variable of a model, whether the distributed optimizer gives it weight decay."""
    sdp.init()
    net = training.model()
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.exclude_from_weight_decay(var_list=net.trainable_variables[:1], var_names=["bias"])
    distributed = sdp.DistributedOptimizer(optimizer)
    return [distributed._use_weight_decay(variable) for variable in net.trainable_variables]


def averaged() -> tuple[list[Any], float]:
    """Average statistics of ranks that each saw half of the examples; return them, and a tuned momentum.

    With a momentum of 0 the statistics are those of the last forward pass.
    """
    sdp.init()
    net = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.0)])
    net(examples()[sdp.rank() :: sdp.size()], training=True)
    average_batch_norm(net)
    tuned = keras.Sequential([keras.Input((3,)), keras.Sequential([keras.layers.BatchNormalization(momentum=0.9)])])
    tune_batch_norm(tuned, batch=64, base_batch=32)
    layer = net.layers[0]
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()], tuned.layers[0].layers[0].momentum


def examples() -> Any:
    values = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 5.0, 0.1] + [0.0, 100.0, -3.0]
    values[20:] += 2
    return values.astype(np.float32)


def operations_of_a_layer() -> dict[str, float]:
    """Return the number of operations that one more layer adds to a step."""
    kinds = (LARS, LAMB, keras.optimizers.Lamb)
    return {kind.__name__: (_operations(kind(0.1), 6) - _operations(kind(0.1), 2)) / 4 for kind in kinds}


def _operations(optimizer: Any, layers: int) -> int:
    variables = [keras.Variable(np.ones((4, 4)), name="kernel") for _ in range(layers)]
    optimizer.build(variables)
    step = tf.function(lambda *gradients: optimizer.apply_gradients(zip(gradients, variables, strict=True)))
    return len(step.get_concrete_function(*[tf.ones((4, 4))] * layers).graph.get_operations())


def refusals() -> list[str]:
    """Return the error messages for wrong arguments."""
    half = keras.Variable(np.ones((2, 2)), dtype="bfloat16", name="kernel")

    def tune(**setting: bool) -> None:
        layer = keras.layers.BatchNormalization(**setting)
        tune_batch_norm(keras.Sequential([keras.Input((3,)), layer]), batch=2, base_batch=1)

    attempts = [
        lambda: LARS(-1),
        lambda: LAMB(0.1, beta_1=1.0),
        lambda: LARS(0.1).build([half]),
        lambda: ScheduledRate(-1, Schedule(length=1)),
        lambda: tune(renorm=True),
        lambda: tune(synchronized=True),
    ]
    messages = []
    for attempt in attempts:
        try:
            attempt()
        except ParallelError as error:
            messages.append(str(error))
    return messages
