"""The announcement's script trains a model that is split over two ranks, and plain Keras loads the saved model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_tensorflow import PYTHON, SOURCES

EXAMPLE = Path(__file__).parents[2] / "examples" / "launch_post"


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.timeout(240)
def test_the_announcement_s_model_trains_and_loads_in_plain_keras(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    # The data comes from scikit-learn, which only this Python has. Only the other Python has TensorFlow.
    subprocess.run([sys.executable, EXAMPLE / "data.py", tmp_path / "data", "--digits"], check=True)
    done = subprocess.run(
        [PYTHON, EXAMPLE / "submit.py", "--data", tmp_path / "data", "--json"],
        env={
            **os.environ,
            "HERRINGBONE_HOME": str(tmp_path / "home"),
            "PYTHONPATH": os.pathsep.join(SOURCES),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["accuracy"] >= 0.95
    assert result["same"], "each rank prints every epoch's loss"
    assert result["difference"] <= 1e-5
