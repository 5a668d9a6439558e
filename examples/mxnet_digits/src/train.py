"""Train a small Gluon network on handwritten digits, in one process, with parameter servers, or with all-reduce.

The job's `distribution` selects one of the three. `--batch` is the batch of all ranks together.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon


def network() -> gluon.Block:
    """Build the network with random weights."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def trainer(net: gluon.Block, settings: dict[str, float], batch: int):
    """Return a trainer, this rank's number, the number of ranks, and the divisor for the trainer's `step`."""
    if "DMLC_ROLE" in os.environ:
        # Servers add up the gradients of all workers and hold the weights, so the divisor is the whole batch.
        store = mx.kv.create("dist_sync")
        return gluon.Trainer(net.collect_params(), "sgd", settings, store), store.rank, store.num_workers, batch
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import horovod.mxnet as hvd

        hvd.init()
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        distributed = hvd.DistributedTrainer(net.collect_params(), "sgd", settings)
        # Horovod's trainer averages over the ranks, so the divisor is this rank's part of the batch.
        return distributed, hvd.rank(), hvd.size(), batch // hvd.size()
    return gluon.Trainer(net.collect_params(), "sgd", settings), 0, 1, batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    arguments, _ = parser.parse_known_args()

    mx.random.seed(arguments.seed)
    data = np.load(Path(os.environ["SM_CHANNEL_TRAINING"]) / "digits.npz")
    images, labels = data["train_images"], data["train_labels"]
    net, loss_of = network(), gluon.loss.SoftmaxCrossEntropyLoss()
    settings = {"learning_rate": arguments.lr, "momentum": 0.9}
    updates, rank, size, divisor = trainer(net, settings, arguments.batch)
    for epoch in range(arguments.epochs):
        order = np.random.default_rng([arguments.seed, epoch]).permutation(len(labels))
        for start in range(0, len(order) - arguments.batch + 1, arguments.batch):
            part = order[start : start + arguments.batch][rank::size]
            with autograd.record():
                loss = loss_of(net(mx.nd.array(images[part])), mx.nd.array(labels[part]))
            loss.backward()
            updates.step(divisor)
        # MXNet computes in background threads. A worker that exits with work left deadlocks: the worker waits for the
        # others, and they wait for its gradients.
        mx.nd.waitall()
        if rank == 0:
            print(f"epoch={epoch + 1} loss={loss.mean().asscalar():.4f}")
    if rank == 0:
        predicted = net(mx.nd.array(data["test_images"])).argmax(axis=1).asnumpy()
        print(f"test_accuracy={(predicted == data['test_labels']).mean():.4f}")
        net.save_parameters(str(Path(os.environ["SM_MODEL_DIR"]) / "model.params"))


if __name__ == "__main__":
    main()
