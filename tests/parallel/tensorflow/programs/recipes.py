"""LARS, LAMB and the rest of the recipes, on the variables and models of the tests."""

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
    """Apply each step's gradients, those that there are; return the weights after each step."""
    schedule = Schedule(length=6, warmup=2, decay="polynomial", power=2)
    made = getattr(recipes, optimizer)(ScheduledRate(0.3, schedule), **settings)
    variables = [keras.Variable(value, name=name.rsplit("/")[-1]) for name, value in weights.items()]
    made.build(variables)
    found = []
    for given in gradients:
        together = [tf.constant(given[name]) if name in given else None for name in weights]

        def step(together: list[Any] = together) -> None:
            made.apply_gradients(zip(together, variables, strict=True))

        (tf.function(step) if in_graph else step)()
        found.append({name: variable.numpy() for name, variable in zip(weights, variables, strict=True)})
    return found


def trained(at_once: int, scaled: bool) -> Any:
    """Four batches through `fit`, `at_once` joined, at rates that change with every step."""
    sdp.init()
    optimizer: Any = LARS(ScheduledRate(0.5, Schedule(length=2, warmup=1)), weight_decay=0.01, trust=0.01)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    net = training.model()
    net.compile(sdp.DistributedOptimizer(optimizer), training.loss_of_fit(), jit_compile=False)
    batches = aggregation._batches(sdp.size(), sdp.rank(), at_once)
    images, labels = (np.stack(each) for each in zip(*batches, strict=True))
    net.fit(tf.data.Dataset.from_tensor_slices((images, labels)), verbose=0, shuffle=False)
    return training.weights(net)


def resumed() -> tuple[list[str], Any, Any]:
    """Three steps at once; and two, saved and loaded, and a third. Return the classes found, and both weights."""
    sdp.init()
    images, labels = training.batches(1, 0)

    def fit(net: keras.Model, some: slice) -> None:
        net.fit(tf.data.Dataset.from_tensor_slices((images[some], labels[some])), verbose=0, shuffle=False)

    def made() -> keras.Model:
        net = training.model()
        optimizer = LAMB(ScheduledRate(0.01, Schedule(length=3, warmup=2)), weight_decay=0.01)
        net.compile(sdp.DistributedOptimizer(optimizer), training.loss_of_fit(), jit_compile=False)
        return net

    whole, first = made(), made()
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
    """Whether each variable of a model has weight decay when the optimizer has been made to sum over ranks."""
    sdp.init()
    net = training.model()
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.exclude_from_weight_decay(var_list=net.trainable_variables[:1], var_names=["bias"])
    distributed = sdp.DistributedOptimizer(optimizer)
    return [distributed._use_weight_decay(variable) for variable in net.trainable_variables]


def averaged() -> tuple[list[Any], float]:
    """Each rank sees half of the examples in one forward; with a momentum of 0 the statistics are of those alone."""
    sdp.init()
    net = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.0)])
    net(examples()[sdp.rank() :: sdp.size()], training=True)
    average_batch_norm(net)
    tuned = keras.Sequential([keras.Input((3,)), keras.Sequential([keras.layers.BatchNormalization(momentum=0.9)])])
    tune_batch_norm(tuned, batch=64, base_batch=32)
    layer = net.layers[0]
    return [layer.moving_mean.numpy(), layer.moving_variance.numpy()], tuned.layers[0].layers[0].momentum


def examples() -> Any:
    found = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 5.0, 0.1] + [0.0, 100.0, -3.0]
    found[20:] += 2
    return found.astype(np.float32)


def operations_of_a_layer() -> dict[str, float]:
    """How many operations more a step has with a layer more."""
    kinds = (LARS, LAMB, keras.optimizers.Lamb)
    return {kind.__name__: (_operations(kind(0.1), 6) - _operations(kind(0.1), 2)) / 4 for kind in kinds}


def _operations(made: Any, layers: int) -> int:
    variables = [keras.Variable(np.ones((4, 4)), name="kernel") for _ in range(layers)]
    made.build(variables)
    step = tf.function(lambda *gradients: made.apply_gradients(zip(gradients, variables, strict=True)))
    return len(step.get_concrete_function(*[tf.ones((4, 4))] * layers).graph.get_operations())


def refusals() -> list[str]:
    """What is said to what cannot be."""
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
    said = []
    for attempt in attempts:
        try:
            attempt()
        except ParallelError as error:
            said.append(str(error))
    return said
