"""Whole steps of scripts are timed, in several processes at once."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", minversion="2.4")

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.prediction.measurement import (
    Call,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    Timings,
    parse_timings,
    to_text,
)
from herringbone_parallel.torch.measure import timing

SCRIPT = """
import os, sys
import torch
from torch import nn

ranks = int(os.environ["WORLD_SIZE"])
assert os.environ["HERRINGBONE_MEASURING"] == "1"
if ranks > 1:
    torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # Values are real ones.
    assert loss.item() < 10
"""
SMP = """
import torch
from torch import nn
import herringbone_parallel.torch.model_parallel.api as smp

smp.init()
model = smp.DistributedModel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

@smp.step
def train(batch):
    loss = model(batch).square().mean()
    model.backward(loss)
    return loss

for _ in range(4):
    optimizer.zero_grad()
    train(torch.ones(8, 64))
    optimizer.step()
"""
DEVICE = {
    "name": "cpu",
    "memory_bytes": 1 << 33,
    "operations_per_second": {"float32": 5e10},
    "bytes_per_second": 1e10,
}


STEP = Measurement(
    framework="torch",
    device="cpu",
    modules=(Module("", "Model"),),
    parameters=(Parameter("weight", 0, (1000,), "float32", 4000),),
    operations=(Operation("aten.relu.default", ((1000,),), "float32", 0, 8000),),
    calls=(Call(0, 0, Phase.FORWARD),),
    tensors=(),
)


def question(measurement: Path, distribution: object = None, hosts: int = 1) -> dict[str, object]:
    host = {"name": "local", "count": hosts, "ranks_per_host": 2 // hosts, "device": DEVICE, "cores": 4}
    return {"measurement": str(measurement), "hosts": host, "distribution": distribution or {}}


def timed(
    folder: Path, script: str, *arguments: str, distribution: dict[str, object] | None = None, hosts: int = 1
) -> tuple[Timings | None, str]:
    """Measure a script and time it as a job of two ranks; return the timings and the output."""
    path, measured, output = folder / "train.py", folder / "step.json", folder / "steps.json"
    path.write_text(script)
    parameters = None if distribution is None else {"partitions": 2, "microbatches": 2}
    distribution = distribution or {"mpi": {"enabled": True, "processes_per_host": 2 // hosts}}
    (folder / "question.json").write_text(json.dumps(question(measured, distribution, hosts)))
    ranks = "2" if parameters is None else "1"
    environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(2 // hosts), "OMP_NUM_THREADS": "1"}
    if parameters is not None:
        environment["SM_HP_MP_PARAMETERS"] = json.dumps(parameters)
    timing_options = ["--time", str(folder / "question.json"), "--job", "--budget", "0.05"]
    for options in (["--output", str(measured), "--once"], ["--output", str(output), *timing_options]):
        command = [sys.executable, "-m", "herringbone_parallel.torch.measure", "--ranks", ranks, *options, str(path)]
        result = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        if result.returncode:
            return None, result.stderr
    return parse_timings(output.read_bytes()), result.stderr


def test_steps_are_timed_alone_and_as_the_ranks_of_the_job(tmp_path: Path) -> None:
    # A script with few steps is timed in those that it has.
    timings, output = timed(tmp_path, SCRIPT, "3", hosts=2)
    assert timings is not None, output
    assert timings.threads == 1
    assert timings.slowdown >= 1.0
    assert min(timings.forward_s, timings.backward_s, timings.optimizer_s) > 0
    assert set(timings.modules) == {"", "0", "1", "2"}
    assert all(backward_s > 0 for _, backward_s in timings.modules.values())
    assert timings.copied_bytes_per_second is not None
    if timings.processes == 2:
        assert set(timings.collectives) == {"all_reduce", "all_gather", "reduce_scatter", "send"}
    assert timings.job is not None
    assert timings.job.ranks == 2
    assert timings.job.seconds > 0


def test_a_pipeline_is_timed_as_the_whole_model_and_as_its_ranks(tmp_path: Path) -> None:
    parameters = {"partitions": 2, "microbatches": 2}
    modelparallel = {"modelparallel": {"enabled": True, "parameters": parameters}}
    distribution: dict[str, object] = {
        "mpi": {"enabled": True, "processes_per_host": 2},
        "smdistributed": modelparallel,
    }
    timings, output = timed(tmp_path, SMP, distribution=distribution)
    assert timings is not None, output
    assert set(timings.modules) == {"", "0", "1", "2"}
    assert timings.job is not None
    assert timings.job.distribution == distribution


def test_a_process_that_dies_is_reported_while_another_one_waits() -> None:
    def work(rank: int, line: timing.Line) -> int:
        if rank == 1:
            os.kill(os.getpid(), 9)
        return line.agreed(1.0)

    with pytest.raises(ParallelError, match="ended"):
        timing.run_together(2, work, 1.0)


def test_processes_end_with_their_parent() -> None:
    code = """
import os, time
from herringbone_parallel.torch.measure import timing
with timing.started(2, lambda _, line: line.agreed(1.0)) as (_, processes):
    print(*(process.pid for process in processes), flush=True)
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    # Their output is the parent's, so it ends when they have; and none of them says that the parent is gone.
    assert (len(done.stdout.split()), done.stderr) == (2, "")


@pytest.mark.parametrize(("seconds", "steps"), [((0.1, 0.5), 4), ((9.0, 1.0), 1), ((1e-9, 1e-9), 40)])
def test_processes_agree_on_the_steps_of_the_slowest_one(seconds: tuple[float, float], steps: int) -> None:
    assert timing.run_together(2, lambda rank, line: line.agreed(seconds[rank]), 2.0) == [steps, steps]


def test_a_model_that_does_not_fit_is_not_timed(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_bytes(to_text(STEP))
    (tmp_path / "question.json").write_text(json.dumps(question(tmp_path / "step.json")))
    options = argparse.Namespace(time=tmp_path / "question.json", threads=1, budget=1.0)
    with pytest.raises(ParallelError, match="more memory than this machine has left"):
        timing.time_script(options, lambda ranks: None, lambda: 1000)


def test_free_memory_of_a_system_that_does_not_tell_it() -> None:
    assert timing._free_bytes({}) > 1 << 30
