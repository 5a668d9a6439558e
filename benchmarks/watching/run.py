"""Measure what watching a job for faults costs its steps: one job, whose watchers work and rest in turn.

Usage: python benchmarks/watching/run.py [--turns 30] [--steps 2]. The last line is JSON.

On: the supervisor and the observer of the host run, with hang_timeout, stragglers and losses; each step of the ranks is
noted, and has a metric; replicas are compared once in a turn. Off: both processes are frozen, and the ranks' optimizers
call nothing of ours. A turn is on, off, off, on, of `--steps` steps each, so that a load that grows evenly meets both
alike. torch's own record of collective operations goes on in both; `record_us` is its cost for each.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from herringbone import PyTorch

# Two ranks that compute on one thread each, about half a second a step, and sum gradients.
SCRIPT = """
import argparse, json, os, signal, time
import torch
import torch.distributed as dist
from herringbone import log_metrics

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--turns", type=int)
arguments = parser.parse_args()


def read(pid):
    with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline", "rb") as command:
        return int(stat.read().rpartition(")")[2].split()[1]), command.read()


def watchers():
    '''Return the pids of this host's supervisor and of its observer.'''
    ancestor = os.getppid()
    while ancestor > 1:
        # mpirun is one of the ancestors, and its arguments name a program of ours as well.
        if b"herringbone_entry" in read(ancestor)[1]:
            pid = ancestor
        ancestor = read(ancestor)[0]
    pids = [pid]
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent, command = read(name)
        except OSError:
            continue
        if parent == pid and b"observer.main" in command:
            pids.append(int(name))
    return pids


torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.randn(1024, 1024)
count = 0


def train(is_on):
    global count
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(arguments.steps):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if is_on:
            log_metrics({"loss": value}, step=count)
        count += 1
    return time.perf_counter() - begin, time.process_time() - cpu


from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

for _ in range(2):
    train(True)
# The observer starts a second after the ranks.
time.sleep(3)
pids, ours = watchers(), dict(hooks)
assert len(pids) == 2 and len(ours) == 2, (pids, ours)
turns = []
for turn in range(arguments.turns * 4):
    is_on = turn % 4 in (0, 3)
    hooks.clear()
    hooks.update(ours if is_on else {})
    if dist.get_rank() == 0:
        for pid in pids:
            os.kill(pid, signal.SIGCONT if is_on else signal.SIGSTOP)
    turns.append(train(is_on))
if dist.get_rank() == 0:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/row.json", "w") as file:
        json.dump(turns, file)
dist.destroy_process_group()
"""
# A process group of one rank: the time of a small sum is that of the call.
RECORD = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
value, best = torch.ones(1), 1e9
for _ in range(5):
    begin = time.perf_counter()
    for _ in range(2000):
        dist.all_reduce(value)
    best = min(best, (time.perf_counter() - begin) / 2000)
print(best * 1e6)
"""


def measure(folder: Path, turns: int, steps: int) -> list[tuple[float, float]]:
    """Run the job, and return the time and the processor time of each quarter of a turn, of rank 0."""
    estimator = PyTorch(
        "train.py",
        source_dir=str(folder / "code"),
        instance_type="local_process",
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
        base_job_name="watching",
        hyperparameters={"steps": steps, "turns": turns},
        hang_timeout=60,
        loss_spike_factor=100,
        check_replicas_every=2 * steps,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        job = estimator.fit()
        job.download("output", str(folder / job.name))
    rows: list[tuple[float, float]] = json.loads((folder / job.name / "row.json").read_text())
    return rows


def record_us(folder: Path) -> float:
    """Return the microseconds that torch's record of a collective operation costs."""
    (folder / "record.py").write_text(RECORD)
    times = [
        float(
            subprocess.run(
                [sys.executable, "record.py", str(folder / f"store-{size}")],
                env={**os.environ, "TORCH_FR_BUFFER_SIZE": size, "OMP_NUM_THREADS": "1"},
                cwd=folder,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for size in ("2000", "0")
    ]
    return times[0] - times[1]


def ratios(quarters: list[float]) -> list[float]:
    """Return the time with watchers over that without, of each turn."""
    turns = [quarters[begin : begin + 4] for begin in range(0, len(quarters), 4)]
    return [(on + again) / (off + too) for on, off, too, again in turns]


def bound(values: list[float]) -> dict[str, float]:
    """Return the median ratio, and the upper end of its 95 % interval by the order statistics of a binomial."""
    ordered = sorted(values)
    most = min(len(ordered) - 1, round(len(ordered) / 2 + 0.98 * len(ordered) ** 0.5))
    return {"median": round(statistics.median(ordered), 4), "most": round(ordered[most], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2, help="in each quarter of a turn")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        rows = measure(folder, arguments.turns, arguments.steps)
        record = record_us(folder)
    wall, cpu = ([row[part] for row in rows] for part in (0, 1))
    result: dict[str, Any] = {
        "step_s": round(statistics.median(wall) / arguments.steps, 4),
        "step_ratio": bound(ratios(wall)),
        "cpu_ratio": bound(ratios(cpu)),
        "record_us": round(record, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
