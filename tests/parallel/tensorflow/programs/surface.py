"""Calls of scripts, one after the other, on every rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
import tensorflow as tf
from keras_compat import as_it_was


def ranks() -> tuple[Any, ...]:
    """Return this rank's numbers, and the error of a second `init`."""
    sdp.init()
    try:
        sdp.init()
    except Exception as error:  # noqa: BLE001  the test reads it
        return sdp.rank(), sdp.size(), sdp.local_rank(), sdp.local_size(), f"{type(error).__name__}: {error}"
    return ()


def single_tensors() -> dict[str, Any]:
    """Run each operation on single tensors, in a graph and in eager code."""
    sdp.init()
    own_tensor = tf.constant([1.0, 2.0]) * (sdp.rank() + 1)

    def all_of_them(tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        halves = sdp.Compression.fp16
        return {
            "average": sdp.allreduce(tensor, 0, 2),
            "sum": sdp.allreduce(tensor, 1, 2, op=sdp.ReduceOp.SUM),
            "sparse": sdp.allreduce(tf.IndexedSlices(tensor[None], tf.constant([1]), tf.constant([3, 2])), 0, 1),
            "oob": sdp.oob_allreduce(tensor),
            "fp16": sdp.oob_allreduce(tensor, halves),
            "bfloat16": tf.cast(sdp.oob_allreduce(tf.cast(tensor, tf.bfloat16)), tf.float32),
            "min": sdp.oob_allreduce(tensor, op=sdp.ReduceOp.MIN),
            "max": sdp.oob_allreduce(tensor, op=sdp.ReduceOp.MAX),
            "count": sdp.oob_allreduce(tf.cast(tensor, tf.int64), op=sdp.ReduceOp.SUM),
            "scalar": sdp.oob_allreduce(tensor[0]),
            "nan": sdp.oob_allreduce(tensor / tf.constant([0.0, 1.0]) - tf.constant([np.inf, 0.0])),
            "root": sdp.broadcast(tensor, 1),
            "overlap": sdp.overlap(tensor),
        }

    eager, graph = all_of_them(own_tensor), tf.function(all_of_them)(own_tensor)
    assert {name: value.dtype for name, value in eager.items()} == {name: value.dtype for name, value in graph.items()}
    return {name: [eager[name].numpy().tolist(), graph[name].numpy().tolist()] for name in eager}


def broadcast_of_variables(seeds: list[int]) -> tuple[list[list[float]], int]:
    """Broadcast from rank 1 variables that each rank has drawn itself, in eager code and in a graph."""
    from herringbone_parallel.tensorflow.data_parallel import state

    sdp.init()
    generator = tf.random.Generator.from_seed(seeds[sdp.rank()])
    variables = [tf.Variable(generator.normal([50, 50])), tf.Variable(generator.normal([3]) > 0), tf.Variable(7)]
    before = state.get().engine.stats().sent_bytes
    sdp.broadcast_variables(variables, root_rank=1)
    sent = state.get().engine.stats().sent_bytes - before
    values = [float(tf.reduce_sum(tf.cast(variable, tf.float32))) for variable in variables]
    variables[0].assign_add(tf.fill([50, 50], float(sdp.rank())))
    tf.function(lambda: sdp.broadcast_variables(variables, root_rank=0))()
    return [values, [float(tf.reduce_sum(variables[0]))]], sent


def sparse_gradients(as_dense: bool) -> list[list[list[float]]]:
    """Return the gradients of an embedding of which each rank has looked up other rows."""
    sdp.init()
    table = tf.Variable(tf.zeros([4, 2]))

    def gradient(rows: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        tape = sdp.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        result = tape.gradient(loss, table)
        assert isinstance(result, tf.IndexedSlices) is not as_dense
        return tf.convert_to_tensor(result)

    rows = tf.constant([0, 1] if sdp.rank() == 0 else [1, 1, 2])
    return [gradient(rows).numpy().tolist(), tf.function(gradient)(rows).numpy().tolist()]


def sparse_step_of_adam() -> float:
    """Return the difference between a step of this optimizer and of plain Adam, for the rows of both ranks."""
    sdp.init()
    tables = [keras.Variable(np.ones((4, 2), np.float32)) for _ in range(2)]
    every = [[0, 1], [1, 1, 2]]

    def slices(rows: list[int], scale: float) -> Any:
        return tf.IndexedSlices(tf.fill([len(rows), 2], scale), tf.constant(rows), tf.constant([4, 2]))

    sdp.DistributedOptimizer(keras.optimizers.Adam(0.1)).apply([slices(every[sdp.rank()], 1.0)], tables[:1])
    keras.optimizers.Adam(0.1).apply([slices([*every[0], *every[1]], 0.5)], tables[1:])
    return float(np.abs(np.asarray(tables[0]) - np.asarray(tables[1])).max())


def overlap(layers: int) -> tuple[int, int]:
    """Return the number of sums that had started when the backward pass reached the first layer, and of all sums."""
    from herringbone_parallel.tensorflow.data_parallel import state

    sdp.init()
    weights = [tf.Variable(tf.eye(256) * 0.5) for _ in range(layers)]
    optimizer = sdp.DistributedOptimizer(keras.optimizers.SGD(0.1), bucket_cap_mb=0.25)
    started = []

    @tf.custom_gradient
    def first(inputs: tf.Tensor) -> Any:
        def look(upstream: Any) -> Any:
            started.append(state.get().engine.stats().buffers)
            return upstream

        # Not stateful: TensorFlow would run the sums, which come later in the program, after it.
        return tf.identity(inputs), lambda upstream: tf.numpy_function(look, [upstream], tf.float32, stateful=False)

    @tf.function
    def step(inputs: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            hidden = inputs
            for number, weight in enumerate(weights):
                hidden = tf.tanh(hidden @ weight)
                if number == 0:
                    hidden = first(tf.ensure_shape(hidden, [512, 256]))
            loss = tf.reduce_sum(hidden)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    # In the first two steps, ranks also compare their gradients and weights.
    step(tf.ones([512, 256]))
    step(tf.ones([512, 256]))
    before = state.get().engine.stats().buffers
    step(tf.ones([512, 256]))
    return started[-1] - before, state.get().engine.stats().buffers - before


def session_of_tensorflow_1() -> list[float]:
    """Run two steps of a graph, with the hook that first gives all ranks the same variables."""
    sdp.init()
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", initializer=tf.constant([1.0, 2.0]) * (sdp.rank() + 1))
        loss = tf.reduce_sum(weight * tf.constant([1.0, 3.0]) * (sdp.rank() + 1))
        optimizer = sdp.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(loss)
        hooks = [sdp.BroadcastGlobalVariablesHook(0)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            session.run(train)
            session.run(train)
            return session.run(weight).tolist()


# A model-parallel program in this process may have patched `Model.compile`, and then Keras restores no optimizer.
@as_it_was()
def saved_model(path: str) -> tuple[str, str, list[float], list[float]]:
    """Save a model in training; return the class and state of its optimizer in plain Keras."""
    sdp.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(sdp.DistributedOptimizer(keras.optimizers.Adam(0.25)), "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
    if sdp.rank() == 0:
        model.save(path)
        plain = keras.models.load_model(path)
        kind = type(plain.optimizer)
        state = [
            np.concatenate([v.numpy().ravel() for v in net.optimizer.variables]).tolist() for net in (model, plain)
        ]
        return kind.__module__, kind.__name__, *state
    return "", "", [], []


def loss_scale() -> list[Any]:
    """Run three steps, of which one overflows on rank 1 only; return weight and scale after each."""
    sdp.init()
    weight = tf.Variable([1.0])
    optimizer = sdp.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 4.0))

    @tf.function
    def step(gradient: tf.Tensor) -> None:
        optimizer.apply_gradients([(gradient, weight)])

    seen = []
    for number in range(3):
        own_tensor = np.inf if number == 1 and sdp.rank() == 1 else float(optimizer.scale_loss(1.0 + sdp.rank()))
        step(tf.constant([own_tensor], tf.float32))
        seen.append([float(weight[0]), float(optimizer.dynamic_scale)])
    return seen


def traced_again_by_rank_1() -> list[float]:
    """Give rank 1 a smaller last batch, for which it traces the step again; rank 0 does not."""
    sdp.init()
    weight = tf.Variable([1.0])

    @tf.function
    def step(batch: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch * weight)
        weight.assign_sub(sdp.DistributedGradientTape(tape).gradient(loss, weight))

    for size in (4, 4, 3 if sdp.rank() else 4):
        step(tf.ones([size]))
    return weight.numpy().tolist()


def gradients_of_tensors() -> tuple[list[list[float]], int]:
    """Return gradients of tensors, and the number of reductions that the library keeps for further steps."""
    from herringbone_parallel.tensorflow.data_parallel import state

    sdp.init()
    gradients = []
    for number in range(4):
        point = tf.constant([float(number)])
        with tf.GradientTape() as tape:
            tape.watch(point)
            loss = point * point * (1.0 + sdp.rank())
        gradients.append(sdp.DistributedGradientTape(tape).gradient(loss, point).numpy().tolist())
    return gradients, len(state.get().reductions)
