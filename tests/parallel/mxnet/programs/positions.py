"""A training of Gluon that is ended at any step and begun again: each step is written down, and at last the weights.

Usage: `PYTHON positions.py FOLDER LOG STOP WORKERS`, as a process alone or as a rank. A line of the log is JSON: epoch,
step, numbers of the samples, loss. The last one is a digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import herringbone_parallel.mxnet.api as hvd
from herringbone_parallel.mxnet.position.api import DataLoader, Training

SAMPLES, EPOCHS = 22, 2


class Augmented(gluon.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        noise = 0.1 * (random.random() + np.random.rand())
        return np.int32(index), np.full(4, index / SAMPLES + noise, np.float32)


def loop(folder: str, log: str, stop: int = 0, workers: int = 0, batch_size: int = 4) -> None:
    """Train from the newest checkpoint on; `stop` is a step at which it is killed, or 0."""
    random.seed(1)
    np.random.seed(1)
    mx.random.seed(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        hvd.init()
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, in_units=4), gluon.nn.BatchNorm(in_channels=8))
    net.add(gluon.nn.Dropout(0.3), gluon.nn.Dense(1, in_units=8))
    net.initialize(mx.init.Xavier())
    schedule = mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.02)
    made = hvd.DistributedTrainer if size > 1 else gluon.Trainer
    trainer = made(net.collect_params(), "adam", {"lr_scheduler": schedule})
    loader = DataLoader(Augmented(), batch_size, shuffle=True, seed=3, num_workers=workers)
    metric = mx.metric.MSE()
    training = Training(folder=folder, model=net, trainer=trainer, loader=loader, metric=metric)
    training.resume()
    with Path(log).open("a", buffering=1) as file:
        for epoch in range(training.epoch, EPOCHS):
            for indices, inputs in loader:
                with autograd.record():
                    outputs = net(inputs)
                    loss = ((outputs[:, 0] - indices.astype("float32") / SAMPLES) ** 2).mean()
                loss.backward()
                trainer.step(1)
                metric.update([indices.astype("float32")], [outputs[:, 0]])
                samples = indices.asnumpy().tolist()
                values = [float(loss.asscalar()), metric.get()[1], trainer.learning_rate, random.random()]
                file.write(json.dumps([epoch, training.step, samples, *values]) + "\n")
                if training.step % 2 == 0:
                    training.save()
                if training.step == stop:
                    os.kill(os.getpid(), signal.SIGKILL)
        weights = b"".join(one.data().asnumpy().tobytes() for one in net.collect_params().values())
        file.write(json.dumps([-1, -1, hashlib.sha256(weights).hexdigest()]) + "\n")


if __name__ == "__main__":
    loop(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
