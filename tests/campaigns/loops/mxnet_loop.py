"""A loop of Gluon on ranks that sum gradients; `Training` keeps what it goes on with."""

import argparse
import random
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from steplog import StepLog

import herringbone_parallel.mxnet.api as hvd
from herringbone_parallel.mxnet.position.api import DataLoader, Training

SAMPLES, EPOCHS, BATCH = 64, 2, 8

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float, default=0.3)
arguments, _ = parser.parse_known_args()
hvd.init()
log = StepLog(hvd.rank())
random.seed(1)
np.random.seed(1)
mx.random.seed(1)


class Numbered(gluon.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.int32(index), np.full(4, index / SAMPLES, np.float32)


net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, in_units=4), gluon.nn.Dropout(arguments.dropout), gluon.nn.Dense(1, in_units=8))
net.initialize(mx.init.Xavier())
trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.01})
loader = DataLoader(Numbered(), BATCH // hvd.size(), shuffle=True, seed=3)
training = Training(model=net, trainer=trainer, loader=loader)
training.resume()
for epoch in range(training.epoch, EPOCHS):
    for indices, inputs in loader:
        with autograd.record():
            loss = ((net(inputs)[:, 0] - indices.astype("float32") / SAMPLES) ** 2).mean()
        loss.backward()
        trainer.step(1)
        log.step(training.step, epoch, indices.asnumpy(), float(loss.asscalar()))
        if training.step % 2 == 0:
            training.save()
log.end(value for one in net.collect_params().values() for value in one.data().asnumpy().ravel())
