"""Public functions besides training: ranks, groups, objects, results, hooks, layers of all kinds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import models
import numpy as np
import smdistributed.modelparallel.tensorflow as smp
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.tensorflow.model_parallel import state


def ranks() -> Any:
    smp.init()
    smp.init()
    numbers = [smp.rank(), smp.size(), smp.local_rank(), smp.local_size(), smp.pp_rank(), smp.pp_size()]
    numbers += [smp.mp_rank(), smp.mp_size(), smp.dp_rank(), smp.dp_size(), smp.tp_size(), smp.rdp_size()]
    groups = [smp.get_mp_group(), smp.get_dp_group(), smp.get_pp_group(), smp.get_world_group()]
    gathered = smp.allgather({"from": smp.rank()}, smp.MP_GROUP)
    smp.barrier()
    smp.mp_barrier()
    smp.dp_barrier()
    if smp.rank() == 0:
        smp.broadcast(np.arange(3), smp.WORLD)
        received = smp.recv_from(1, smp.RankType.PP_RANK)
    else:
        received = smp.recv_from(0, smp.RankType.WORLD_RANK).tolist()
        smp.send("back", 0, smp.RankType.MP_RANK)
    return numbers, groups, gathered, received


def results() -> Any:
    """Return a step's results for inputs that are split, whole, split along another axis, and no tensors."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    hooks = []

    @smp.register_post_partition_hook
    def hook() -> None:
        hooks.append((tf.executing_eagerly(), len(model.trainable_variables)))

    @smp.step(non_split_inputs=["whole"], input_split_axes={"columns": 1})
    def step(inputs: Any, whole: Any, columns: Any, name: str) -> Any:
        output = model(inputs)
        return {"output": output, "shapes": [whole + 0, tf.shape(columns)], "name": name, "count": 3}

    vectors = np.arange(24, dtype=np.float32).reshape(4, 6)
    result = step(vectors, np.ones(3, np.float32), np.zeros((2, 4), np.float32), "a name")
    output = result["output"]
    variable = tf.Variable(tf.zeros(3))
    values = {
        "mean": output.reduce_mean().numpy() - np.mean([part.numpy() for part in output.outputs], axis=0),
        "sum": output.reduce_sum().numpy() - np.sum([part.numpy() for part in output.outputs], axis=0),
        "shapes": [list(tensor.shape) for tensor in (output.concat(), output.merge(), output.stack())],
        "accumulated": result["shapes"][0].accumulate("add_n", variable).numpy().tolist(),
        "whole": result["shapes"][0].reduce_sum().numpy().tolist(),
        "columns": result["shapes"][1].outputs[0].numpy().tolist(),
        "mean of counts": result["shapes"][1].reduce_mean().numpy().tolist(),
        "no tensors": [result["name"], result["count"]],
    }
    return values, hooks


def rewritten() -> set[str]:
    """Use a step's results inside a `tf.function`; return the names of the functions that AutoGraph rewrote for it."""
    smp.init()
    layer = keras.layers.Dense(3)
    model = smp.DistributedModel(keras.Sequential([layer]))

    @smp.step
    def a_step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(inputs)
            loss = tf.reduce_mean(outputs)
        return tape.gradient(loss, model.trainable_variables), loss, outputs

    @tf.function
    def a_caller(inputs: Any) -> Any:
        gradients, loss, outputs = a_step(inputs)
        sums = loss.reduce_mean() + loss.reduce_sum()
        return [gradient.accumulate() for gradient in gradients], sums, outputs.merge(), outputs.stack()

    a_caller(np.ones((4, 6), np.float32))
    files = [module.__file__ for name, module in sys.modules.items() if name.startswith("__autograph_generated_file")]
    return {name for file in files for name in re.findall(r"def tf__(\w+)\(", Path(file).read_text())}


class NoShape(keras.layers.Layer):
    """A layer without `compute_output_shape`, whose variables take their shape from the batch."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, vectors: Any) -> Any:
        return tf.concat([vectors * self.scale, tf.reverse(vectors, [1])], axis=1)


def layer_without_output_shape() -> Any:
    smp.init()

    class Net(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = NoShape(), keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, vectors: Any) -> Any:
            with smp.partition(1):
                vectors = self.first(vectors)
            with smp.partition(0):
                return self.second(vectors)

    model = Net()
    return smp.step(lambda inputs: model(inputs))(np.ones((2, 3), np.float32)).merge().numpy().tolist()


def memory() -> Any:
    """Return the bytes and counts of variables that this rank holds of a model that was built before it was split."""
    smp.init()
    net = keras.Sequential([keras.Input((6,)), *(keras.layers.Dense(6) for _ in range(4))])
    model = smp.DistributedModel(net)
    smp.step(lambda inputs: model(inputs))(np.ones((4, 6), np.float32))
    held = 0
    for variable in model.all_variables():
        try:
            held += variable.numpy().nbytes
        except ParallelError:
            continue
    weights = model.get_weights()
    model.set_weights([2 * weight for weight in weights])
    doubled = [bool((after == 2 * weight).all()) for weight, after in zip(weights, model.get_weights(), strict=True)]
    counts = model.count_params(), len(weights), all(doubled)
    return held, len(model.variables), len(model.all_variables()), sorted(set(state.get().owners.values())), counts


def gradients_one_by_one() -> Any:
    """Compute gradients in a `tf.function` as sums and one by one; return the differences, and the shapes."""
    smp.init()
    keras.utils.set_random_seed(3)
    model = models.CASES["tied"].distributed([0, 1])

    @smp.step
    def step(words: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(words))
        return tape.gradient(loss, model.trainable_variables)

    @tf.function
    def one_by_one(words: Any) -> Any:
        gradients = step(words)
        return [(g.reduce_sum(), g.stack(), g.accumulate()) for g in gradients]

    words = np.arange(16, dtype=np.int32).reshape(4, 4) % 11
    return [
        [float(np.abs(np.sum(parts, axis=0) - total).max() + np.abs(total / 2 - mean).max()), list(np.shape(parts))]
        for _ in range(2)
        for total, parts, mean in [[part.numpy() for part in parts] for parts in one_by_one(words)]
    ]


def input_signature() -> Any:
    """Return the number of traces for batches of two sizes, the shapes of the results, and an error."""
    smp.init()
    model = models.CASES["dense"].distributed([0, 1])
    traced = []

    @smp.step(input_signature=[tf.TensorSpec((None, 6), tf.float32)])
    def step(inputs: Any) -> Any:
        traced.append(inputs.shape)
        return model(inputs)

    shapes = [list(step(np.ones((batch, 6), np.float32)).merge().shape) for batch in (4, 8)]
    try:
        step(np.ones((4, 7), np.float32))
    except ParallelError as error:
        return len(traced), shapes, str(error)
    return None


# What scripts do with a gradient and its variable inside a step; and what mixes the gradients of several variables.
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "sign": lambda gradient, _: tf.sign(gradient),
    "checked": lambda gradient, _: tf.debugging.check_numerics(gradient, "a gradient"),
    "stopped": lambda gradient, _: tf.stop_gradient(gradient) + 0.0,
    "flat and back": lambda gradient, _: tf.reshape(tf.reshape(gradient, [-1]) * 2, gradient.shape),
    "turned": lambda gradient, _: tf.transpose(tf.transpose(gradient)),
    "decay": lambda gradient, weight: tf.stop_gradient(0.1 * tf.convert_to_tensor(weight) + gradient),
    "branch": lambda gradient, _: tf.cond(tf.reduce_sum(gradient) > 0, lambda: gradient * 2, lambda: gradient),
    "unit": lambda gradient, _: tf.math.l2_normalize(gradient) if gradient.shape.rank else gradient * 2,
    "rows": lambda gradient, _: tf.map_fn(lambda row: row * 2, gradient) if gradient.shape.rank else gradient,
    "no biases": lambda gradient, _: tf.zeros_like(gradient) if gradient.shape.rank == 1 else gradient,
    "none": lambda gradient, _: None if gradient.shape.rank == 1 else gradient,
}


class Added(smp.DistributedModel):
    """Layers of equal shapes on both partitions, an embedding, and two variables with one tensor as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second = keras.layers.Embedding(6, 6), *(keras.layers.Dense(6) for _ in range(2))
        self.one, self.other = (self.add_weight(shape=(6,), initializer="ones") for _ in range(2))
        self.warm = self.add_weight(shape=(), initializer="ones")

    def call(self, words: Any) -> Any:
        with smp.partition(0):
            hidden = self.first(self.words(words)) * self.warm
        with smp.partition(1):
            return tf.tanh(self.second(hidden)) * (self.one + self.other)


def changed_gradients() -> tuple[list[str], list[str], list[int]]:
    """Return the changes whose result differs from that of the same change after the step, and the errors of others.

    And the rows of the sparse gradients that were not changed.
    """
    smp.init()
    model = Added()
    words = np.arange(8, dtype=np.int32).reshape(2, 4) % 6

    def gradients_of(words: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(words)))
        return tape.gradient(loss, model.trainable_variables)

    @smp.step
    def step(words: Any, change: Any) -> Any:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients_of(words)]
        pairs = zip(gradients, model.trainable_variables, strict=True)
        return gradients, [change(gradient, weight) for gradient, weight in pairs], tf.linalg.global_norm(gradients)

    wrong = []
    for name, change in CHANGES.items():
        gradients, changed, norm = step(words, change)
        weights = model.trainable_variables
        expected = [change(g.outputs[0], w) for g, w in zip(gradients, weights, strict=True)]
        equal = len(changed) == len(expected) and norm.outputs[0].shape == ()
        if not equal or any(
            (ours is None) != (e is None) or (e is not None and np.abs(ours.outputs[0] - e).max() > 1e-6)
            for ours, e in zip(changed, expected, strict=True)
        ):
            wrong.append(name)

    def stopped(words: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.warm * tf.stop_gradient(model(words)))
        return tape.gradient(loss, model.trainable_variables)

    if len(smp.step(stopped)(words)) != len(model.trainable_variables):
        wrong.append("stopped")

    def mixed(words: Any) -> Any:
        first, _, second, _ = gradients_of(words)[4:]
        return [first + second]

    def whole(words: Any) -> Any:
        gradients = gradients_of(words)[4:]
        flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
        parts = tf.split(flat, [gradient.shape.num_elements() for gradient in gradients])
        return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    errors = []
    for function in (mixed, whole):
        try:
            smp.step(function)(words)
        except ParallelError as error:
            errors.append(str(error))
    unchanged = [gradient.accumulate() for gradient in smp.step(gradients_of)(words)]
    return wrong, errors, [g.indices.shape[0] for g in unchanged if isinstance(g, tf.IndexedSlices)]
