"""Unchanged scripts of Hugging Face's Trainer and accelerate train under each key as in one process.

The scripts are in tests/huggingface/scripts; they run in the Python of `tests/huggingface/setup`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import herringbone
import herringbone_contract
import herringbone_entry
import herringbone_parallel

PACKAGES = (herringbone, herringbone_entry, herringbone_contract, herringbone_parallel)
SOURCES = [str(Path(package.__file__).parents[1]) for package in PACKAGES]
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-huggingface" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "huggingface" / "scripts"

CLIENT = """
import json, sys
from herringbone import PyTorch

settings = json.loads(sys.argv[1])
PyTorch(instance_type="local_process", **settings).fit(logs=False)
"""
# Six steps of eight rows each: one epoch, so that a script that trains on its own data alone shows.
ARGUMENTS = {
    "max_steps": 6,
    "logging_steps": 1,
    "learning_rate": 0.01,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "cosine",
    "save_steps": 3,
    "report_to": "none",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    # Otherwise transformers 5.23 multiplies a classifier's loss by the number of processes, under torchrun as well.
    "average_tokens_across_devices": False,
}
# Its losses are averages over tokens, of which each rank and each microbatch has another number.
PADDED = {"model_type": "gpt2", "padded": True, "average_tokens_across_devices": True}
pytestmark = [pytest.mark.e2e, pytest.mark.huggingface, pytest.mark.timeout(600)]


def run(command: list[Any], home: Path) -> None:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HERRINGBONE_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(SOURCES),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4_000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    return tmp_path_factory.mktemp("trainers")


def words(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def settings_of(output: Path, processes: int, **others: Any) -> dict[str, Any]:
    output.mkdir(exist_ok=True)
    batches = {"per_device_train_batch_size": 8 // processes, "per_device_eval_batch_size": 4 // processes}
    return {"output_dir": str(output), **batches, **ARGUMENTS, **others}


def several(output: Path, processes: int, *, loop: bool = True) -> Path:
    """Write the file of `several.py` that runs all scripts, or all but the one with a loop, each with its folder."""
    output.mkdir()
    trainer = {
        f"run_{name}.py": words(settings_of(output / name, processes, **others))
        for name, others in (("glue", {}), ("clm", PADDED))
    }
    file = output / "scripts.json"
    # First: accelerate keeps the layers of a Trainer's sharded model for the next model that it gets.
    first = {"accelerate_loop.py": ["--output_dir", str(output)]} if loop else {}
    file.write_text(json.dumps({**first, **trainer}))
    return file


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """The scripts in one process, without a job."""
    run([PYTHON, SCRIPTS / "several.py", "--scripts", several(folder / "alone", 1)], folder / "home")
    return folder / "alone"


@pytest.fixture(scope="module")
def submit(folder: Path) -> Callable[..., None]:
    def submit(script: str, distribution: Any, *, hosts: int = 1, **settings: Any) -> None:
        settings |= {"entry_point": script, "source_dir": str(SCRIPTS), "instance_count": hosts}
        run([PYTHON, "-c", CLIENT, json.dumps({**settings, "distribution": distribution})], folder / "home")

    return submit


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Read a file of safetensors: the header's length, the header, the data."""
    content = (checkpoint / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {
        name: torch.frombuffer(bytearray(content), dtype=torch.float32, offset=begin + entry["data_offsets"][0])[
            : torch.Size(entry["shape"]).numel()
        ].clone()
        for name, entry in header.items()
    }


def losses(output: Path) -> list[float]:
    state = json.loads((output / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def require_equal(output: Path, expected: Path, first_step: int = 1) -> None:
    """Compare losses from a step on, the weights and the metrics with those of another output folder."""
    assert losses(output)[first_step - 1 :] == pytest.approx(losses(expected)[first_step - 1 :], abs=1e-5)
    found, wanted = weights(output / "checkpoint-6"), weights(expected / "checkpoint-6")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5, msg=name)
    metrics, expected_metrics = (json.loads((path / "eval_results.json").read_text()) for path in (output, expected))
    for name in ("eval_accuracy", "eval_rows", "eval_loss"):
        # Of 23 rows the last batch is not full, and accelerate fills it up. Predictions leave that out, losses do not.
        assert metrics.get(name) == pytest.approx(expected_metrics.get(name), abs=1e-2 if name == "eval_loss" else 1e-5)


SHARDED = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}},
    "torch_distributed": {"enabled": True},
}


@pytest.mark.parametrize(
    ("distribution", "hosts"),
    [
        pytest.param("torch_distributed", 2, id="copies"),
        pytest.param({"mpi": {"enabled": True, "processes_per_host": 2}}, 1, id="mpi"),
        pytest.param(SHARDED, 2, id="sharded"),
    ],
)
def test_every_script_trains_on_two_ranks_without_a_configuration(
    submit: Callable[..., None], alone: Path, folder: Path, distribution: Any, hosts: int, request: Any
) -> None:
    output = folder / request.node.callspec.id
    submit("several.py", distribution, hosts=hosts, hyperparameters={"scripts": str(several(output, 2))})
    require_equal(output / "glue", alone / "glue")
    require_equal(output / "clm", alone / "clm")
    loop, expected = (json.loads((path / "loop.json").read_text()) for path in (output, alone))
    assert (loop["ranks"], expected["ranks"]) == (2, 1)
    assert loop["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    for name, value in expected["weights"].items():
        torch.testing.assert_close(torch.tensor(loop["weights"][name]), torch.tensor(value), rtol=0, atol=1e-5)


def test_trainer_sums_gradients_through_the_data_parallel_library(
    submit: Callable[..., None], alone: Path, folder: Path
) -> None:
    scripts = {"scripts": str(several(folder / "data_parallel", 2, loop=False))}
    submit("several.py", {"smdistributed": {"dataparallel": {"enabled": True}}}, hosts=2, hyperparameters=scripts)
    require_equal(folder / "data_parallel" / "glue", alone / "glue")
    require_equal(folder / "data_parallel" / "clm", alone / "clm")


def test_trainer_splits_the_model_and_resumes_with_other_replicas(
    submit: Callable[..., None], alone: Path, folder: Path
) -> None:
    def split(ranks: int) -> dict[str, Any]:
        parameters = {"partitions": 2, "microbatches": 2, "ddp": True}
        return {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
            "mpi": {"enabled": True, "processes_per_host": ranks},
        }

    four, resumed = folder / "four", folder / "resumed"
    submit("run_glue.py", split(4), hyperparameters=settings_of(four, 2))
    require_equal(four, alone / "glue")
    checkpoint = str(four / "checkpoint-3")
    submit("run_glue.py", split(2), hyperparameters=settings_of(resumed, 1, resume_from_checkpoint=checkpoint))
    require_equal(resumed, alone / "glue", first_step=4)
    submit("run_clm.py", split(4), hyperparameters=settings_of(folder / "split_clm", 2, **PADDED))
    require_equal(folder / "split_clm", alone / "clm")
