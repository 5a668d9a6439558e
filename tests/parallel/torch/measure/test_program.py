"""`python -m herringbone_parallel.torch.measure`: its exit codes, its messages, and the second run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.4")

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.prediction.measurement import parse
from herringbone_parallel.reduce import session
from herringbone_parallel.torch.measure.environment import is_version_1, measured_environment

TRAINS = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist

assert os.environ["HERRINGBONE_MEASURING"] == "1"
dist.init_process_group()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(int(sys.argv[1]) // dist.get_world_size(), 64)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    (Path(os.environ["SM_MODEL_DIR"]) / "log.txt").write_text("a line")
"""
HANGS = """
import torch

weight = torch.zeros(4)
while True:
    weight = weight * 0.5
"""
SMDDP = """
import torch
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

dist.init_process_group()
assert (dist.get_world_size(), dist.get_rank(), dist.get_local_rank()) == (4, 0, 0)
model = DistributedDataParallel(torch.nn.Linear(64, 64), device_ids=[dist.get_local_rank()])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(8, 64)).sum()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
"""
OPTIONS = ("--ranks", "4", "--once")


def measure(
    folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    program = [sys.executable, "-m", "herringbone_parallel.torch.measure", "--output", str(folder.parent / "out.json")]
    return subprocess.run(
        [*program, *options, str(folder / "train.py"), *arguments], capture_output=True, text=True, timeout=120
    )


def test_measures_and_writes_nothing_else(tmp_path: Path) -> None:
    result = measure(tmp_path / "code", TRAINS, "64", options=("--ranks", "4"))
    assert result.returncode == 0, result.stderr
    measurement = parse((tmp_path / "out.json").read_bytes())
    assert (measurement.ranks, measurement.batch, measurement.batch_divides) == (4, 16, True)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["train.py"]


def test_script_in_a_folder_of_the_code(tmp_path: Path) -> None:
    """Its neighbours come before modules of the code, in which it starts, and none of them hides one of ours."""
    code = tmp_path / "code"
    (code / "scripts").mkdir(parents=True)
    for name, value in (("scripts/helper", "64"), ("helper", "1 / 0"), ("numbers_of", "8"), ("tempfile", "1 / 0")):
        (code / f"{name}.py").write_text(f"value = {value}")
    script = """
import os, subprocess, sys, helper, numbers_of
assert (helper.value, numbers_of.value, os.path.exists("numbers_of.py")) == (64, 8, True)
subprocess.run([sys.executable, "-c", "import numbers_of"], cwd="/", check=True)
"""
    (code / "train.py").write_text("")
    paths = ("--paths", os.pathsep.join([str(code / "scripts"), str(code)]))
    result = measure(code / "scripts", script + TRAINS, "64", options=("--ranks", "4", *paths))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "code" / "out.json").exists()


def test_a_script_says_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(HANGS)
    program = [sys.executable, "-m", "herringbone_parallel.torch.measure", "--output", "out.json", "--once"]
    with subprocess.Popen([*program, str(folder / "train.py")], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert line.startswith("measure: phase data, ")
    assert "; it stands at line 5 of train.py: " in line or "; it stands at line 6 of train.py: " in line


def test_script_that_fails(tmp_path: Path) -> None:
    result = measure(tmp_path / "code", "import torch\nopen('missing.csv')\n", options=("--once",))
    assert result.returncode == 1
    assert "measure/script.py" not in result.stderr
    assert result.stderr.rstrip().endswith("No such file or directory: 'missing.csv'")


def test_environment_has_one_whole_model() -> None:
    environ = {
        "SM_HP_MP_PARAMETERS": '{"partitions":2,"microbatches":4,"shard_optimizer_state":true}',
        "HERRINGBONE_ACCELERATE": "ACCELERATE_USE_FSDP",
        "LOCAL_WORLD_SIZE": "8",
    }
    changes = measured_environment(environ, ranks=4)
    assert changes["SM_HP_MP_PARAMETERS"] == (
        '{"microbatches": 4, "ddp": true, "partitions": 1, "shard_optimizer_state": false}'
    )
    assert changes["ACCELERATE_USE_FSDP"] is None
    assert (changes["WORLD_SIZE"], changes["LOCAL_WORLD_SIZE"], changes["RANK"]) == ("4", "4", "0")
    assert is_version_1(environ)
    assert not is_version_1({"SM_HP_MP_PARAMETERS": '{"hybrid_shard_degree":2}'})


def test_version_1_of_the_data_parallel_library(tmp_path: Path) -> None:
    shim = Path(__file__).parents[4] / "parallel" / "shim"
    result = measure(tmp_path / "code", f"import sys; sys.path.insert(0, {str(shim)!r})\n" + SMDDP, options=OPTIONS)
    assert result.returncode == 0, result.stderr
    measurement = parse((tmp_path / "out.json").read_bytes())
    assert (measurement.wrapper, measurement.batch) == ("DistributedDataParallel", 8)


def test_horovod_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_MEASURING", "1")
    with pytest.raises(ParallelError, match=r"hvd.init\(\) in a measured script: .* Plan without measuring"):
        session.enter()
