"""TensorFlow's own strategies through fit(), which sets `TF_CONFIG`, in the Python of `tests/tensorflow/setup`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_tensorflow import train

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.timeout(240)]

MIRRORED = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras
import numpy as np
import tensorflow as tf

images = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
labels = images.sum(1, keepdims=True)


def fit(strategy):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)

    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / 16
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica, batch), axis=None)

    losses = [float(step(batch)) for _ in range(3) for batch in strategy.experimental_distribute_dataset(batches)]
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()] + [losses])


strategy = tf.distribute.MultiWorkerMirroredStrategy()
split = fit(strategy)
alone = fit(tf.distribute.get_strategy())
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
for run in (model.fit, model.evaluate, model.train_on_batch):
    try:
        run(images[:16], labels[:16])
    except Exception as error:
        print("error", error)
rank = strategy.cluster_resolver.task_id
print("trained", rank, strategy.num_replicas_in_sync, np.abs(split - alone).max() <= 1e-5, split.tobytes().hex())
"""
PARAMETER_SERVER = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type == "worker":
    print("a worker serves")
    cluster = resolver.cluster_spec()
    tf.distribute.Server(cluster, job_name="worker", task_index=resolver.task_id, protocol="grpc").join()
shards = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver, variable_partitioner=shards)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))
print("held by", [part.device for part in weights.variables])


@tf.function
def step():
    def replica():
        x = tf.random.normal([32, 8])
        with tf.GradientTape() as tape:
            whole = tf.concat(weights.variables, 0)
            loss = tf.reduce_mean((x @ whole - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
        for part, gradient in zip(weights.variables, tape.gradient(loss, weights.variables)):
            part.assign_sub(0.1 * gradient)

    strategy.run(replica)


for _ in range(100):
    coordinator.schedule(step)
coordinator.join()
print("off by", float(np.abs(tf.concat(weights.variables, 0) - 1).max()) < 1e-3)
"""


def options(strategy: str) -> str:
    return (
        "{'instance_type': 'local_process', 'instance_count': 2, 'model_dir': False,"
        f" 'distribution': {{'{strategy}': {{'enabled': True}}}}}}"
    )


def test_mirrored_workers_train_as_one_process_would(tmp_path: Path) -> None:
    lines, _ = train(tmp_path, MIRRORED, options("multi_worker_mirrored_strategy"))
    results = sorted(line.split() for line in lines if line.startswith("trained "))
    assert [words[1:4] for words in results] == [["0", "2", "True"], ["1", "2", "True"]]
    assert results[0][4] == results[1][4], "the same weights and losses on both workers"
    errors = [line for line in lines if line.startswith("error ")]
    assert len(errors) == 6
    assert all("Keras 3 does not train under a strategy of TensorFlow's for several hosts. Take" in e for e in errors)


def test_a_chief_trains_on_workers_and_parameter_servers(tmp_path: Path) -> None:
    lines, _ = train(tmp_path, PARAMETER_SERVER, options("parameter_server"))
    assert "a worker serves" in lines
    devices = ", ".join(f"'/job:ps/replica:0/task:{number}/device:CPU:0'" for number in range(2))
    assert f"held by [{devices}]" in lines
    assert "off by True" in lines
