"""Scripts of Hugging Face's Trainer and accelerate are split by the keys of version 2, without a line in the script."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import herringbone
import herringbone_contract
import herringbone_entry
import herringbone_parallel
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_entry.launchers.torch_distributed import accelerate_environment, give_way

PACKAGES = (herringbone, herringbone_entry, herringbone_contract, herringbone_parallel)
SOURCES = os.pathsep.join(str(Path(package.__file__).parents[1]) for package in PACKAGES)
PYTHON = Path(__file__).parents[2] / ".venv-huggingface" / "bin" / "python"
SCRIPT = Path(__file__).parent / "sharded_trainer.py"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.huggingface,
    pytest.mark.skipif(not PYTHON.exists(), reason="tests/huggingface/setup makes the Python with transformers"),
]

CLIENT = """
import json, sys
from herringbone import PyTorch

parameters = {"sm_activation_offloading": True, "activation_loading_horizon": 1}
distribution = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
    "torch_distributed": {"enabled": True},
}
settings = {"instance_type": "local_process", "instance_count": 2, "environment": {"FSDP_STATE_DICT_TYPE": "1"}}
job = PyTorch(entry_point="sharded_trainer.py", source_dir=sys.argv[1], distribution=distribution, **settings).fit()
"""
# As a rank of a job does, for scripts that no job starts.
RANK = f"""
import os, runpy
from herringbone_entry.ranks import import_hooks

import_hooks.install("", "", "")
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def layout(name: str, batches: int, **parameters: Any) -> list[Any]:
    return [name, batches, give_way(accelerate_environment(ModelParallelV2Parameters(**parameters), 4), {})[0]]


LAYOUTS = [
    layout("hybrid 2x2", 4, hybrid_shard_degree=2),
    layout("tensor 2 x shard 2", 2, tensor_parallel_degree=2),
    layout("context 2 x shard 2", 2, context_parallel_degree=2),
    layout("tensor 2 x replicas 2", 2, tensor_parallel_degree=2, hybrid_shard_degree=1),
]


def results(output: str) -> dict[str, dict[str, float]]:
    lines = [json.loads(line.partition("RESULT ")[2]) for line in output.splitlines() if "RESULT " in line]
    return {line.pop("layout"): line for line in lines}


def check(line: dict[str, float], share: float, rel: float = 0.03) -> None:
    # transformers computes its losses in fp32, whatever the model's type is.
    assert line["losses"] <= 1e-6
    assert line["weights"] <= 1e-10
    # Norms and buffers are whole on the ranks of a tensor group.
    assert line["share"] == pytest.approx(share, rel=rel)


@pytest.mark.timeout(300)
def test_four_ranks_train_save_and_resume_as_one_process_does() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        **os.environ,
        "PYTHONPATH": SOURCES,
        "LAYOUTS": json.dumps(LAYOUTS),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "HERRINGBONE_ACCELERATE": "ACCELERATE_USE_FSDP",
    }
    ranks = [
        subprocess.Popen(
            [PYTHON, "-c", RANK],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        outputs = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs[0][-3_000:]
    lines = results(outputs[0])
    assert len(lines) == 24
    shares = (1 / 2, 1 / 4, 1 / 4, 1 / 2)
    for (name, batches, _), share in zip(LAYOUTS, shares, strict=True):
        for script in ("Trainer", "Trainer resumed", "accelerate"):
            check(lines[f"{name}: {script}"], share)
        for family in ("tied llama", "bert") if batches == 2 else ():
            # Embeddings of positions are whole there, too.
            check(lines[f"{name}: {family}"], share, rel=0.2)
            assert lines[f"{name}: {family}, bytes"]["more"] == 0


def test_a_job_shards_and_offloads_and_names_the_users_variable(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / SCRIPT.name).write_text(SCRIPT.read_text())
    environment = {**os.environ, "HERRINGBONE_HOME": str(tmp_path / "home"), "PYTHONPATH": SOURCES}
    done = subprocess.run(
        [PYTHON, "-c", CLIENT, tmp_path / "src"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    conflict = "FSDP_STATE_DICT_TYPE=1 of `environment` counts; this job's distribution alone would set"
    assert conflict in done.stdout + done.stderr
    lines = results(done.stdout + done.stderr)
    assert {"job: Trainer", "job: Trainer resumed", "job: accelerate", "job: bert"} <= set(lines)
    for name, line in lines.items():
        if not name.endswith("bytes"):
            check(line, 1 / 2, rel=0.2)
