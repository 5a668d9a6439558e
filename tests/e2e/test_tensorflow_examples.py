"""The examples on TensorFlow as users run them: `submit.py --framework tensorflow` on two hosts and a helper."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_examples import EXAMPLES
from tests.e2e.test_tensorflow import PYTHON, SOURCES

SETTINGS = {
    "bert_squad": {"steps": 10},
    "bert_pretrain": {"steps": 6, "global-batch": 64, "rank-batch": 16},
    # The loss of a step depends on its images, too; it falls below all of them within five steps.
    "mask_rcnn": {"steps": 8},
}


@pytest.mark.e2e
@pytest.mark.tensorflow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("example", "metrics"),
    [
        ("bert_squad", {"eval_f1", "eval_exact_match"}),
        ("bert_pretrain", {"eval_accuracy", "eval_next_accuracy", "eval_loss"}),
        ("mask_rcnn", {"eval_mask_ap", "eval_box_ap"}),
    ],
)
def test_two_hosts_and_a_helper(tmp_path: Path, example: str, metrics: set[str]) -> None:
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    arguments = [f"--set={name}={value}" for name, value in SETTINGS[example].items()]
    command = [PYTHON, EXAMPLES / example / "submit.py", "--framework", "tensorflow", "--hosts", "2", "--helpers", "1"]
    done = subprocess.run(
        [*command, "--json", *arguments],
        env={
            **os.environ,
            "HERRINGBONE_HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(SOURCES),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    losses = [float(loss) for loss in re.findall(r"step=\d+ loss=(\S+)", done.stdout)]
    assert len(losses) == SETTINGS[example]["steps"]
    assert min(losses) < losses[0]
    assert metrics <= set(json.loads(done.stdout.splitlines()[-1]))
    # The helper's statistics: it has added up gradients.
    [received] = re.findall(r'"received_bytes": (\d+)', done.stdout)
    assert int(received) > 0


def test_weights_of_torch_are_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "mask_rcnn" / "submit.py", "--framework", "tensorflow", "--weights", tmp_path],
        env={**os.environ, "HERRINGBONE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(SOURCES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "which tensorflow does not read: leave it out" in done.stderr
