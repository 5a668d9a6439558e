"""Keras's `fit` on ranks of the data-parallel library, with a callback that keeps the place in the data."""

import argparse
import os
from typing import Any

import keras
import numpy as np
from steplog import StepLog

from herringbone_parallel.tensorflow.data_parallel import api as sdp
from herringbone_parallel.tensorflow.position.api import Samples, Training

SAMPLES, EPOCHS, BATCH = 64, 2, 8

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.3)
arguments, _ = parser.parse_known_args()
sdp.init()
log = StepLog(sdp.rank())
inputs = (np.arange(SAMPLES)[:, None] / SAMPLES * np.ones((1, 4))).astype(np.float32)


def read(indices: Any, seeds: Any) -> Any:
    noise = np.array([np.random.default_rng(seed).random() * 0.1 for seed in seeds], np.float32)
    return inputs[indices] + noise[:, None], inputs[indices, :1]


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        log.step(step, data.order.epoch, data.order.batch(batch)[0], float(logs["loss"]))


keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([layers.Dense(8), layers.Dropout(arguments.dropout), layers.Dense(1)])
model.compile(sdp.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
data = Samples(SAMPLES, read, batch_size=BATCH // sdp.size(), seed=3)
training = Training(folder=os.environ["SM_CHECKPOINT_DIR"], every=2, data=data)
model.fit(data, epochs=EPOCHS, callbacks=[Steps(), training], verbose=0)
log.end(value for weight in model.get_weights() for value in np.ravel(weight))
sdp.shutdown()
