"""MXNet scripts through fit(). Client, supervisors, servers and ranks run in the Python of `tests/mxnet/setup`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.e2e.counted import steps_by_rank
from tests.e2e.test_tensorflow import SOURCES

pytestmark = [pytest.mark.e2e, pytest.mark.mxnet, pytest.mark.mpi, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-mxnet" / "bin" / "python"
EXAMPLE = ROOT / "examples" / "mxnet_digits"

COMPARE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import submit
print(json.dumps(submit.compare(sys.argv[2], epochs=2)))
"""
CLIENT = """
import json, sys
from herringbone import MXNet

job = MXNet(
    "train.py", source_dir=sys.argv[1], instance_type="local_process", instance_count=1,
    environment={"OMP_NUM_THREADS": "1"}, distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
).fit(logs=False)
events = [event for event in job.events() if event["kind"] == "steps"]
print(json.dumps([[line.text for line in job.logs()], events]))
"""
SCRIPT = """
import mxnet as mx
import numpy as np
import horovod.mxnet as hvd
from mxnet import autograd, gluon


def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


hvd.init()
rank, size = hvd.rank(), hvd.size()
print("ranks", rank, size, hvd.local_rank(), hvd.local_size())

mine = mx.nd.array([rank, 2.0 * rank + 1])
print("average", hvd.allreduce(mine).asnumpy().tolist(), "of", mine.asnumpy().tolist())
print("scaled", hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2, postscale_factor=3).asnumpy().tolist())
print("extremes", *(hvd.allreduce(mine, op=op).asnumpy().tolist() for op in (hvd.Min, hvd.Max)))
print("counts", hvd.allreduce(mx.nd.array([[1], [2]], dtype="int8"), average=False).asnumpy().tolist())
print("halves", hvd.allreduce(mine.astype("float16")).dtype.__name__)
print("gathered", hvd.allgather(mx.nd.full((rank + 1, 2), rank)).asnumpy().tolist())
print("given", hvd.broadcast(mine, root_rank=1).asnumpy().tolist(), hvd.broadcast_object({"from": rank}, 1))
print("refused", refused(lambda: hvd.allreduce(mx.nd.array([1], dtype="int32"))))
print("refused", refused(lambda: hvd.allreduce(mx.nd.zeros((2, 2)).tostype("row_sparse"))))


def network(seed, inputs=0):
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(8, activation="tanh", in_units=inputs), gluon.nn.Dense(1, in_units=8 if inputs else 0))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def values(net):
    return np.concatenate([value.data().asnumpy().ravel() for _, value in sorted(net.collect_params().items())])


def same(net):
    gathered = hvd.allgather_object(values(net).tobytes())
    return gathered[0] == gathered[1]


images = mx.nd.array(np.random.default_rng(0).normal(size=(16, 4)).astype("float32"))
labels = images.sum(axis=1)
loss_of = gluon.loss.L2Loss()


def train(net, trainer, images, labels, steps=4):
    for _ in range(steps):
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(len(images))
    return values(net)


# These weights have no shape until the first forward, which must already use the weights of rank 0.
net = network(seed=rank)
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
outputs = net(images)
print("deferred", hvd.allreduce(outputs, op=hvd.Min).asnumpy().tolist() == outputs.asnumpy().tolist(), same(net))

settings = {"learning_rate": 0.1, "momentum": 0.9}
alone = network(seed=3, inputs=4)
alone = train(alone, gluon.Trainer(alone.collect_params(), "sgd", settings), images, labels)
net = network(seed=3 + rank, inputs=4)
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", settings)
split = train(net, trainer, images[rank::size], labels[rank::size])
print("trainer", np.abs(split - alone).max() <= 1e-6, same(net))

optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **settings))
# As Gluon's trainer and `mx.mod.Module` do, afterwards.
optimizer.rescale_grad = 1 / 8
net, states = network(seed=3, inputs=4), {}
for _ in range(4):
    with autograd.record():
        loss = loss_of(net(images[rank::size]), labels[rank::size])
    loss.backward()
    for number, (_, value) in enumerate(sorted(net.collect_params().items())):
        state = states.setdefault(number, optimizer.create_state_multi_precision(number, value.data()))
        optimizer.update_multi_precision(number, value.data(), value.grad(), states[number])
print("optimizer", np.abs(values(net) - alone).max() <= 1e-6, optimizer.learning_rate)

short = hvd.DistributedTrainer(network(seed=3, inputs=4).collect_params(), "sgd", compression=hvd.Compression.fp16)
print("refused", refused(lambda: short.step(8, ignore_stale_grad=True)))
print("refused", refused(lambda: hvd.DistributedTrainer({}, "sgd", gradient_predivide_factor=2.0)))
print("refused", refused(lambda: hvd.DistributedTrainer({}, "sgd", num_groups=2)))
net = network(seed=rank, inputs=4)
print("refused", refused(lambda: train(net, hvd.DistributedTrainer(net.collect_params(), "sgd"), images, labels)))
net = network(seed=1, inputs=4) if rank == 0 else gluon.nn.Dense(1, in_units=4, prefix="net_")
net.initialize()
print("refused", refused(lambda: train(net, hvd.DistributedTrainer(net.collect_params(), "sgd"), images, labels)))
"""


def run(folder: Path, program: str, *arguments: str | Path) -> str:
    """Run a program in the Python with MXNet, and return the last line that it prints."""
    if not PYTHON.exists():
        pytest.skip("there is no Python with MXNet: tests/mxnet/setup makes .venv-mxnet")
    environment = {
        **os.environ,
        "HERRINGBONE_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(SOURCES),
    }
    command = [PYTHON, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()[-1]


def test_digits_have_the_weights_of_one_process_with_servers_and_mpi(tmp_path: Path) -> None:
    digits = load_digits()
    images, test = (digits.images / 16).astype(np.float32)[:, None], np.arange(1797) % 5 == 0
    parts = {"train": ~test, "test": test}
    arrays = {f"{name}_images": images[part] for name, part in parts.items()}
    arrays |= {f"{name}_labels": digits.target[part] for name, part in parts.items()}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "digits.npz", **arrays)
    results = json.loads(run(tmp_path, COMPARE, EXAMPLE, tmp_path / "data"))
    assert results.keys() == {"parameter_server", "mpi"}
    assert all(result["difference"] <= 1e-6 and result["accuracy"] > 0.8 for result in results.values()), results


def test_all_functions_of_horovod(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    lines, events = json.loads(run(tmp_path, CLIENT, tmp_path / "src"))
    # The steps of the first trainer.
    assert steps_by_rank(events) == {0: (4, 3), 1: (4, 3)}
    assert sum("Herringbone's own answers to `import horovod`" in line for line in lines) == 1
    for expected in (
        "average [0.5, 2.0] of [0.0, 1.0]",
        "average [0.5, 2.0] of [1.0, 3.0]",
        "ranks 0 2 0 2",
        "ranks 1 2 1 2",
    ):
        assert lines.count(expected) == 1
    for expected in (
        "scaled [6.0, 24.0]",
        "extremes [0.0, 1.0] [1.0, 3.0]",
        "counts [[2], [4]]",
        "halves float16",
        "gathered [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]",
        "given [1.0, 3.0] {'from': 1}",
        "deferred True True",
        "trainer True True",
        "optimizer True 0.1",
    ):
        assert lines.count(expected) == 2, expected
    refused = [line.removeprefix("refused ParallelError: ") for line in lines if line.startswith("refused ")]
    for text in (
        "hvd.allreduce: an average of int32: cast it, or give op=hvd.Sum",
        "the array of hvd.allreduce is a row_sparse array: give one that is not sparse",
        "ignore_stale_grad=True: ranks that skip different parameters would end with different weights",
        "gradient_predivide_factor=2.0: sums are computed in fp32 and then divided once",
        "hvd.DistributedTrainer has no num_groups here: leave it out",
        "the ranks train from different weights: call hvd.broadcast_parameters(net.collect_params(), root_rank=0)",
        "ranks disagree on the gradients: at position 0",
    ):
        assert sum(line.startswith(text) for line in refused) == 2, text
