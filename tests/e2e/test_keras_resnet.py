"""Run the Keras example as users do: one script has the same losses on any number of hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_examples import EXAMPLES, load
from tests.e2e.test_tensorflow import PYTHON, SOURCES


def submitted(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    return subprocess.run(
        [PYTHON, EXAMPLES / "keras_resnet" / "submit.py", "--data", folder / "data", "--tiny", "--json", *arguments],
        env={
            **os.environ,
            "HERRINGBONE_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(SOURCES),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        capture_output=True,
        text=True,
    )


@pytest.mark.e2e
@pytest.mark.tensorflow
@pytest.mark.timeout(400)
def test_keras_has_the_same_losses_on_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("common", "digits", monkeypatch).write(tmp_path / "data")
    losses_by_hosts, scores = {}, {}
    for hosts in (1, 2, 4):
        # In fp32, another order of sums moved a value across a ReLU after 47 steps, on an Intel processor.
        done = submitted(tmp_path, "--hosts", str(hosts), "--set", "steps=50", "--set", "double=true")
        assert done.returncode == 0, done.stderr[-3_000:]
        losses_by_hosts[hosts] = [float(loss) for loss in re.findall(r"step=\d+ loss=(\S+)", done.stdout)]
        figures = json.loads(done.stdout.splitlines()[-1])
        assert {"init_seconds", "run_seconds", "epoch_seconds", "throughput"} <= set(figures)
        scores[hosts] = figures["eval_accuracy"]
    assert [len(values) for values in losses_by_hosts.values()] == [50, 50, 50]
    assert losses_by_hosts[2] == pytest.approx(losses_by_hosts[1], abs=1e-5)
    assert losses_by_hosts[4] == pytest.approx(losses_by_hosts[1], abs=1e-5)
    assert scores[1] == scores[2] == scores[4]
    assert scores[1] > 0.6  # the schedule ends here in its middle, where the rate is high


@pytest.mark.e2e
@pytest.mark.tensorflow
def test_batches_that_do_not_fit_the_ranks_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = submitted(tmp_path, "--hosts", "8")
    assert done.returncode != 0
    assert "a global batch of 32 cannot be made of 8 ranks x 8 examples" in done.stderr
    assert not (tmp_path / "home" / "jobs").exists()
