"""TensorFlow scripts through fit(). Client, supervisors and ranks run in the Python of `tests/tensorflow/setup`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import herringbone
import herringbone_contract
import herringbone_entry
import herringbone_parallel
from tests.e2e.counted import steps_by_rank

# The sources of Herringbone, without the other packages of this Python.
SOURCES = [
    str(Path(package.__file__).parents[1])
    for package in (herringbone, herringbone_entry, herringbone_parallel, herringbone_contract)
]
PYTHON = Path(__file__).parents[2] / ".venv-tf" / "bin" / "python"

CLIENT = """
import json, sys
from herringbone import InstanceGroup, TensorFlow

kept = {"tensorboard_output_config": {"s3_output_path": sys.argv[1] + "/../kept"}}
job = TensorFlow(entry_point="train.py", source_dir=sys.argv[1], **kept, **eval(sys.argv[2])).fit(logs=False)
events = [event for event in job.events() if event["kind"] in ("steps", "metrics", "progress")]
print(json.dumps([job.status, [line.text for line in job.logs()], events]))
"""
SCRIPT = """
import hashlib
import os
import time
import keras
import numpy as np
import tensorflow as tf
import {library} as dp
from herringbone_parallel.tensorflow.callbacks import JobMetrics

dp.init()
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(dp.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
mine = np.random.default_rng(dp.rank()).normal(size=(64, 8))
history = model.fit(mine, mine.sum(1), batch_size=16, epochs=8, verbose=0, callbacks=[JobMetrics()]).history["loss"]
first, *_, last = history
assert last < first
weights = b"".join(weight.numpy().tobytes() for weight in model.weights)
print("digest", dp.rank(), dp.size(), hashlib.sha256(weights).hexdigest())
if dp.rank() == 0:
    # As `tf.summary` does, which needs TensorBoard.
    folder = os.environ["SM_OUTPUT_DIR"] + "/tensorboard"
    os.makedirs(folder, exist_ok=True)
    with tf.io.TFRecordWriter(folder + "/events.out.tfevents.1.host") as writer:
        for step, loss in enumerate(history):
            event = tf.compat.v1.Event(wall_time=time.time(), step=step)
            event.summary.value.add(tag="epoch_loss", simple_value=loss)
            writer.write(event.SerializeToString())
dp.shutdown()
"""


def train(folder: Path, script: str, options: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Run a job that must complete, and return its log and its events."""
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(script)
    environment = {
        **os.environ,
        "HERRINGBONE_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join(SOURCES),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [PYTHON, "-c", CLIENT, folder / "src", options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    status, lines, events = json.loads(done.stdout.splitlines()[-1])
    assert status == "Completed"
    return lines, events


def check_events(folder: Path, events: list[dict[str, Any]]) -> None:
    # 8 epochs of 4 steps.
    assert steps_by_rank(events) == {0: (32, 31), 1: (32, 31)}
    # The callback sends the loss once an epoch, and once a second.
    losses = values_of(events, "keras", "loss", rank=0)
    assert losses[-1][0] == 32
    files = values_of(events, "tensorboard", "epoch_loss", rank=None)
    assert [step for step, _ in files] == list(range(8))
    assert files[-1][1] == pytest.approx(losses[-1][1])
    # The option's folder has the files, and there is one: that of rank 0.
    assert len(list((folder / "kept").rglob("*tfevents*"))) == 1
    progress = [event for event in events if event["kind"] == "progress"]
    assert (progress[-1]["done"], progress[-1]["total"], progress[-1]["unit"]) == (32, 32, "step")


def values_of(events: list[dict[str, Any]], source: str, name: str, *, rank: int | None) -> list[tuple[int, float]]:
    """Return the steps and values of one metric."""
    return [
        (event["step"] + index * (event["by"] or 0), value)
        for event in events
        if event["kind"] == "metrics" and (event["source"], event["name"], event["rank"]) == (source, name, rank)
        for index, value in enumerate(event["values"])
    ]


def check(lines: list[str]) -> None:
    digests = sorted(line.split() for line in lines if line.startswith("digest "))
    assert [words[1:3] for words in digests] == [["0", "2"], ["1", "2"]]
    assert digests[0][3] == digests[1][3], "the same weights on all ranks, without a broadcast"


@pytest.mark.e2e
@pytest.mark.tensorflow
def test_a_keras_script_with_a_helper_host(tmp_path: Path) -> None:
    groups = "[InstanceGroup('gpu', 'local_process', 2), InstanceGroup('cpu', 'local_process', 1)]"
    settings = "{'smdistributed': {'dataparallel': {'enabled': True, 'helpers': 'cpu'}}}"
    options = f"{{'instance_groups': {groups}, 'distribution': {settings}}}"
    lines, events = train(tmp_path, SCRIPT.format(library="smdistributed.dataparallel.tensorflow"), options)
    check(lines)
    check_events(tmp_path, events)
    [stats] = [json.loads(line) for line in lines if line.startswith('{"host"')]
    assert stats["received_bytes"] > 0


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.tensorflow
def test_a_script_for_horovod_under_mpi(tmp_path: Path) -> None:
    settings = "{'mpi': {'enabled': True, 'processes_per_host': 2}}"
    options = f"{{'instance_type': 'local_process', 'instance_count': 1, 'distribution': {settings}}}"
    lines, events = train(tmp_path, SCRIPT.format(library="horovod.tensorflow.keras"), options)
    check(lines)
    check_events(tmp_path, events)
