"""Calls of example scripts for Horovod."""

from __future__ import annotations

from typing import Any

import horovod.keras
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf


def tensors() -> dict[str, Any]:
    hvd.init()
    hvd.init()
    own_tensor = tf.fill([hvd.rank() + 1, 2], float(hvd.rank()))
    refused = []
    for wrong in (
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), gradient_predivide_factor=2.0),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=3),
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), device_sparse="/cpu:0"),
        lambda: hvd.allreduce(tf.ones(1), average=True, op=hvd.Sum),
        lambda: hvd.join(),
        lambda: horovod.keras.elastic,
        lambda: hvd.allreduce(tf.ones(1), op=hvd.Adasum),
    ):
        try:
            wrong()
        except Exception as error:  # noqa: BLE001
            refused.append(str(error).split(":")[0])
    slices = hvd.allreduce(tf.IndexedSlices(tf.ones([1]), tf.constant([hvd.rank()]), tf.constant([2])))
    return {
        "ranks": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        "hosts": (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous(), hvd.nccl_built(), hasattr(hvd, "join")),
        "grouped": [float(tensor) for tensor in hvd.grouped_allreduce([tf.ones(()), tf.fill((), 3.0)], op=hvd.Sum)],
        "average": hvd.allreduce(tf.constant([2.0 * hvd.rank()])).numpy().tolist(),
        "sum": hvd.allreduce(tf.constant([1.0]), average=False, postscale_factor=10.0).numpy().tolist(),
        "slices": [part.numpy().tolist() for part in (slices.values, slices.indices)],
        "allgather": hvd.allgather(own_tensor).numpy().tolist(),
        "in a graph": tf.function(hvd.allgather)(own_tensor).numpy().tolist(),
        "broadcast": hvd.broadcast(tf.constant([hvd.rank() + 5]), 1).numpy().tolist(),
        "object": hvd.broadcast_object_fn(1)({"from": hvd.rank()}),
        "objects": hvd.allgather_object("ab"[hvd.rank()]),
        "refused": refused,
    }


def keras_script(path: str) -> tuple[list[float], list[float], Any]:
    """Run the usual Keras script with other weights on each rank; then load its model and train it further."""
    import horovod.keras.callbacks as callbacks
    import horovod.tensorflow.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lr=0.2, momentum=0.9))
    model.compile(optimizer, "mse", experimental_run_tf_function=False)
    assert not hasattr(hvd, "elastic")
    rates: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    history = model.fit(
        np.full((8, 4), 1.0 + hvd.rank()),
        np.ones((8, 2)),
        batch_size=4,
        epochs=2,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(initial_lr=0.2, warmup_epochs=1),
            # A file that several processes write at once is refused by its library.
            keras.callbacks.BackupAndRestore(f"{path}.backup", delete_checkpoint=False),
            note,
        ],
    )
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    if hvd.rank() == 0:
        model.save(path)
    hvd.broadcast_object(None)
    again = hvd.load_model(path)
    again.fit(np.full((8, 4), 1.0 + hvd.rank()), np.ones((8, 2)), verbose=0)
    return rates, history.history["loss"], np.concatenate([v.numpy().ravel() for v in again.variables])
