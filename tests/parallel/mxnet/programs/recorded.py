"""Train with Gluon, undisturbed and with planted faults, and print each training's records of steps."""

import sys
from typing import Any

import msgspec
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from herringbone_parallel import fingerprints
from herringbone_parallel.mxnet.fingerprints import record

inputs = np.random.RandomState(0).rand(24, 4).astype("float32")
sent: Any = None


def train(fault: str = "") -> Any:
    """Train six steps, the last three of them as a process that has been restarted does."""
    mx.random.seed(1)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(4, in_units=4), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(1, in_units=4))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    loss_of = gluon.loss.L2Loss()
    for number in range(6):
        rows = slice(4 * number, 4 * number + 4)
        if number == 3 and sent is not None:
            sent.append([])
        if number == 3 and fault == "state":
            for states in trainer._updaters[0].states.values():
                for array in states:
                    array[:] = 0
        if number == 3 and fault == "rate":
            trainer.set_learning_rate(0.005)
        batch = inputs[rows][::-1] if number > 2 and fault == "order" else inputs[rows]
        with autograd.record():
            loss = loss_of(net(mx.nd.array(batch)), mx.nd.array(batch.sum(1)))
        loss.backward()
        trainer.step(4)
    return [one.data().asnumpy().tolist() for one in net.collect_params().values()]


weights = train()
begun: list[fingerprints.Recorder] = []
begin = fingerprints.Recorder.begin


def collected(self: fingerprints.Recorder, _send: Any) -> None:
    begun.append(self)
    begin(self, lambda step, rank: sent[-1].append(step))


fingerprints.Recorder.begin = collected  # type: ignore[method-assign]
record()
records = {}
for name in ("", *sys.argv[1:]):
    sent = [[]]
    begun[0].begin(None)  # type: ignore[arg-type]
    found = train(name)
    assert name or found == weights
    records[name or "plain"] = sent
print(msgspec.json.encode(records).decode())
