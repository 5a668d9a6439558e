"""A job of Keras on two ranks that is killed in the middle of an epoch; another job goes on with its checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_tensorflow import PYTHON, SOURCES

pytestmark = [pytest.mark.e2e, pytest.mark.tensorflow, pytest.mark.timeout(240)]

SCRIPT = """
import os
import signal
import keras
import numpy as np
import smdistributed.dataparallel.tensorflow as sdp
from herringbone_parallel.tensorflow.position.api import Samples, Training

sdp.init()
keras.utils.set_random_seed(1)
inputs = np.random.RandomState(0).rand(40, 4).astype("float32")
data = Samples(40, lambda indices, seeds: (inputs[indices], inputs[indices].sum(1)), batch_size=4, seed=1)
dropout = keras.layers.Dropout(0.1, seed=sdp.rank())
model = keras.Sequential([keras.Input((4,)), dropout, keras.layers.Dense(1)])
model.compile(sdp.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=False)


class Shown(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        step = int(model.optimizer.iterations.numpy())
        print("step", sdp.rank(), step, *data.order.batch(batch)[0].tolist(), flush=True)
        if os.environ.get("KILL") and step == 4 and sdp.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


model.fit(data, epochs=2, verbose=0, callbacks=[Shown(), Training(data=data, every=2)])
"""
CLIENT = """
import json, sys
from herringbone import TensorFlow

job = TensorFlow(
    entry_point="train.py", source_dir=sys.argv[1], instance_type="local_process", environment=json.loads(sys.argv[2]),
    checkpoint_s3_uri="file://" + sys.argv[1] + "/../kept", hyperparameters={}, instance_count=2, model_dir=False,
    distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
)
try:
    job = job.fit(logs=False)
except Exception as error:
    print(error, file=sys.stderr)
    job = job.latest_training_job
print(json.dumps([job.status, [line.text for line in job.logs()]]))
"""


def _run(folder: Path, environment: dict[str, str]) -> tuple[str, list[list[int]]]:
    client = {**os.environ, "HERRINGBONE_HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(SOURCES)}
    command = [PYTHON, "-c", CLIENT, folder / "src", json.dumps({"TF_CPP_MIN_LOG_LEVEL": "2", **environment})]
    done = subprocess.run(command, env=client, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    status, lines = json.loads(done.stdout.splitlines()[-1])
    return status, [[int(word) for word in line.split()[1:]] for line in lines if line.startswith("step ")]


def test_a_killed_job_goes_on_in_the_middle_of_its_epoch(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    status, before = _run(tmp_path, {"KILL": "1"})
    assert status == "Failed"
    status, after = _run(tmp_path, {})
    assert status == "Completed"
    # Two ranks made two steps before the checkpoint, and it has five steps an epoch.
    used = {(rank, step): samples for rank, step, *samples in [*before, *after]}
    assert min(step for _, step, *_ in after) == 3
    for epoch in range(2):
        samples = [index for (_, step), taken in used.items() if (step - 1) // 5 == epoch for index in taken]
        assert sorted(samples) == list(range(40))
