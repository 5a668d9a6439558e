"""A training of Gluon that is killed in the middle of an epoch, and goes on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_mxnet import PYTHON
from tests.e2e.test_tensorflow import SOURCES

pytestmark = pytest.mark.mxnet

PROGRAM = Path(__file__).parent / "programs" / "positions.py"


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not PYTHON.exists():
        pytest.skip("there is no Python with MXNet: tests/mxnet/setup makes .venv-mxnet")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(SOURCES)}
    return subprocess.run([PYTHON, *arguments], env=environment, capture_output=True, text=True)


def _train(folder: Path, stops: list[int], workers: int) -> dict[int, Any]:
    """Return what was written down last about each step."""
    for stop in stops:
        done = _python(str(PROGRAM), str(folder), f"{folder}.log", str(stop), str(workers))
        assert done.returncode == (-9 if stop else 0), done.stderr
    lines = [json.loads(line) for line in Path(f"{folder}.log").read_text().splitlines()]
    return {step: [epoch, *rest] for epoch, step, *rest in lines}


@pytest.mark.parametrize("workers", [0, 2])
def test_gluon_goes_on_with_equal_bits(tmp_path: Path, workers: int) -> None:
    whole = _train(tmp_path / "whole", [0], workers)
    assert _train(tmp_path / "killed", [3, 9, 0], workers) == whole
    samples = [index for step, (epoch, indices, *_) in whole.items() if step > 0 and epoch == 0 for index in indices]
    assert sorted(samples) == list(range(22))


REFUSED = """
import mxnet as mx
from mxnet import gluon
from herringbone_parallel.mxnet.position.api import DataLoader, Training

net = gluon.nn.Dense(1, in_units=2)
net.initialize()
data = gluon.data.ArrayDataset(mx.nd.ones((8, 2)))
trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
loader = DataLoader(data, 2)
training = Training(folder=FOLDER, model=net, trainer=trainer, loader=loader)


def ahead():
    for _ in loader:
        training.save()


def other():
    for batch in loader:
        with mx.autograd.record():
            loss = net(batch).sum()
        loss.backward()
        trainer.step(2)
    training.save()
    wide = gluon.nn.Dense(1, in_units=3)
    wide.initialize()
    Training(folder=FOLDER, model=wide).resume()


for call in (
    lambda: DataLoader(data, 2, sampler=gluon.data.RandomSampler(8)),
    lambda: DataLoader(data, 2, thread_pool=True),
    lambda: DataLoader(data, 2, last_batch="rollover"),
    lambda: Training(loader=loader),
    lambda: Training(trainer=trainer, loader=gluon.data.DataLoader(data, 2)),
    lambda: Training(trainer=trainer, loader=mx.io.NDArrayIter(mx.nd.ones((8, 2)), batch_size=2)),
    lambda: Training(trainer=trainer, other=3),
    lambda: Training(model=net).save(),
    ahead,
    other,
):
    try:
        call()
        print("accepted")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_loaders_without_a_place_are_refused_by_name(tmp_path: Path) -> None:
    done = _python("-c", REFUSED.replace("FOLDER", repr(str(tmp_path / "checkpoints"))))
    assert done.returncode == 0, done.stderr
    expected = [
        "DataLoader(sampler=...): give order=",
        "DataLoader(thread_pool=...): its threads draw",
        "DataLoader(last_batch='rollover'): samples belong to an epoch",
        "the loader has no trainer beside it",
        "the part 'loader' is a mxnet.gluon.data.dataloader.DataLoader, which has no place",
        "the part 'loader' is a mxnet.io.io.NDArrayIter, which has no place",
        "the part 'other' is a builtins.int",
        "Training(folder=...) is missing",
        "the batch that the loop took last waits for a step",
        "the checkpoint's part 'model' has 2 variables, and 2 here; first difference: (((1, 2), 'float32'), ((1, 3)",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected)
    for line, text in zip(lines, expected, strict=True):
        assert line.startswith(f"ParallelError {text}"), line
