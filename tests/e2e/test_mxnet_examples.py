"""The examples on MXNet as users run them: equal losses on 1, 2 and 4 ranks, and those of PyTorch from its weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from herringbone_entry.preparation.shims import find_shim
from tests.e2e.test_examples import EXAMPLES
from tests.e2e.test_mxnet import PYTHON
from tests.e2e.test_tensorflow import SOURCES

PROGRAMS = Path(__file__).parents[1] / "examples" / "programs"
HUGGINGFACE = Path(__file__).parents[2] / ".venv-huggingface" / "bin" / "python"
pytestmark = [pytest.mark.e2e, pytest.mark.mxnet, pytest.mark.mpi, pytest.mark.timeout(240)]

SETTINGS = {
    "bert_squad": {"steps": 10},
    "bert_pretrain": {"steps": 6, "global-batch": 64, "rank-batch": 16},
    # In fp32 another order of sums chooses other boxes.
    "mask_rcnn": {"steps": 6, "double": "true"},
}


def command(example: str, *arguments: str) -> list[str]:
    if not PYTHON.exists():
        pytest.skip("there is no Python with MXNet: tests/mxnet/setup makes .venv-mxnet")
    return [str(PYTHON), str(EXAMPLES / example / "submit.py"), "--framework", "mxnet", *arguments]


def submit(home: Path, example: str, *arguments: str) -> tuple[list[float], dict[str, float]]:
    """Return the loss of each step, and the metrics."""
    settings = [f"--set={name}={value}" for name, value in SETTINGS[example].items()]
    environment = {**os.environ, "HERRINGBONE_HOME": str(home), "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(
        command(example, "--json", *settings, *arguments), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    losses = [float(loss) for loss in re.findall(r"step=\d+ loss=(\S+)", done.stdout)]
    return losses, json.loads(done.stdout.splitlines()[-1])


def test_squad_on_1_2_and_4_ranks(tmp_path: Path) -> None:
    alone, metrics = submit(tmp_path, "bert_squad")
    assert len(alone) == 10
    assert min(alone) < alone[0] - 0.3
    for layout in (["--hosts", "2"], ["--hosts", "2", "--ranks", "4"]):
        losses, others = submit(tmp_path, "bert_squad", *layout)
        assert losses == pytest.approx(alone, abs=1e-5)
        for name in ("eval_f1", "eval_exact_match"):
            assert others[name] == pytest.approx(metrics[name], abs=1e-3)


def test_pretraining_on_two_hosts(tmp_path: Path) -> None:
    alone, metrics = submit(tmp_path, "bert_pretrain")
    losses, others = submit(tmp_path, "bert_pretrain", "--hosts", "2")
    assert losses == pytest.approx(alone, abs=1e-5)
    assert min(losses) < losses[0]
    for name in ("eval_accuracy", "eval_next_accuracy", "eval_loss"):
        assert others[name] == pytest.approx(metrics[name], abs=1e-4)


def test_mask_rcnn_on_two_hosts(tmp_path: Path) -> None:
    alone, metrics = submit(tmp_path, "mask_rcnn")
    assert len(alone) == 6
    assert min(alone) < alone[0] - 0.3
    losses, others = submit(tmp_path, "mask_rcnn", "--hosts", "2")
    assert losses == pytest.approx(alone, abs=1e-5)
    for name in ("eval_mask_ap", "eval_box_ap"):
        assert others[name] == pytest.approx(metrics[name], abs=1e-3)


def test_settings_that_mxnet_does_not_have(tmp_path: Path) -> None:
    environment = {**os.environ, "HERRINGBONE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(SOURCES)}
    done = subprocess.run(command("bert_squad", "--helpers", "1"), env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--helpers 1: MXNet's ranks add up their gradients themselves; leave it out" in done.stderr
    program = command("mask_rcnn", "--weights", str(tmp_path))
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--weights is a state dict of PyTorch, which mxnet does not read: leave it out" in done.stderr


@pytest.mark.huggingface
def test_the_losses_gradients_and_steps_of_torch(tmp_path: Path) -> None:
    if not HUGGINGFACE.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([HUGGINGFACE, PROGRAMS / "bert_reference.py", tmp_path], env=environment, check=True)
    # Ranks of a job get this folder, too.
    environment["PYTHONPATH"] = os.pathsep.join([*SOURCES, str(find_shim("horovod"))])
    for example, weights in (("bert_squad", 39), ("bert_pretrain", 46)):
        program = [*command(example)[:1], PROGRAMS / "on_mxnet.py", example, tmp_path / example]
        done = subprocess.run(program, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2_000:]
        compared = json.loads(done.stdout.splitlines()[-1])
        assert compared["missing"] == []
        assert compared["weights"] == weights
        assert compared["loss"] <= 1e-5
        assert compared["gradient"] <= 1e-5
        # The next step of torch's AdamW and RAdam, and the refusal of 16 bits.
        assert compared["adamw"] <= 1e-5
        assert compared["radam"] <= 1e-5
        assert compared["refused"].startswith("--precision bf16: on MXNet the examples compute in fp32")
