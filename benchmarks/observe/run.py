"""Measure what the observer of a host costs a job: step times of two ranks with and without it, in turn.

Usage: python benchmarks/observe/run.py [--pairs 6] [--seconds 15] [--metrics 1]. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
from pathlib import Path

from herringbone import PyTorch

# Two ranks that compute on one thread each and sum gradients, with metrics of each step: a small model trains so.
SCRIPT = """
import argparse, json, os, time
import torch
import torch.distributed as dist
from herringbone_contract.events import emit

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float)
parser.add_argument("--metrics", type=int)
arguments = parser.parse_args()


def observer():
    '''Return the CPU seconds of this host's observer, and its resident bytes; None without one.'''
    job = f"TRAINING_JOB_NAME={os.environ['TRAINING_JOB_NAME']}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if job not in open(f"/proc/{name}/environ", "rb").read():
                continue
            stat = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            command = open(f"/proc/{name}/cmdline", "rb").read()
            pages = int(open(f"/proc/{name}/statm").read().split()[1])
        except OSError:
            continue
        if b"observer.main" in command:
            return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")
    return None


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.randn(64, 512)


def step():
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(20):
    step()
# The observer starts a second after the ranks.
time.sleep(3)
before, cpu, begin = observer(), time.process_time(), time.perf_counter()
deadline, steps = begin + arguments.seconds, 0
while True:
    # Both ranks stop after the same step.
    going = torch.tensor([time.perf_counter() < deadline], dtype=torch.int32)
    if steps % 50 == 0:
        dist.broadcast(going, 0)
        if not going.item():
            break
    loss = step()
    for number in range(arguments.metrics):
        emit.metric(f"loss{number}", loss, steps)
    steps += 1
seconds = time.perf_counter() - begin
after = observer()
if dist.get_rank() == 0:
    share = None if after is None else (after[0] - before[0]) / seconds
    row = {"step_ms": seconds / steps * 1000, "cpu_ms": (time.process_time() - cpu) / steps * 1000, "observer": share}
    row |= {"observer_start_s": before and before[0], "observer_bytes": after and after[1]}
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/row.json", "w") as file:
        json.dump(row, file)
dist.destroy_process_group()
"""
RANKS = {"mpi": {"enabled": True, "processes_per_host": 2}}


def measure(folder: Path, observer: str, seconds: float, metrics: int) -> dict[str, float]:
    estimator = PyTorch(
        "train.py",
        source_dir=str(folder / "code"),
        instance_type="local_process",
        distribution=RANKS,
        base_job_name="observe",
        hyperparameters={"seconds": seconds, "metrics": metrics},
        environment={"HERRINGBONE_OBSERVER": observer},
    )
    with contextlib.redirect_stdout(io.StringIO()):
        job = estimator.fit()
        job.download("output", str(folder / job.name))
    row: dict[str, float] = json.loads((folder / job.name / "row.json").read_text())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--metrics", type=int, default=1, help="metrics that each rank sends at each step")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        for pair in range(arguments.pairs):
            # In turn, and the first one in turn too: another load of the machine must not meet the same one always.
            for observer in ("off", "on") if pair % 2 else ("on", "off"):
                rows[observer].append(measure(folder, observer, arguments.seconds, arguments.metrics))
    ratios = [on["step_ms"] / off["step_ms"] for on, off in zip(rows["on"], rows["off"], strict=True)]
    cpu = [on["cpu_ms"] / off["cpu_ms"] for on, off in zip(rows["on"], rows["off"], strict=True)]
    print(f"{'observer':10}{'step ms':>10}{'CPU ms of rank 0':>20}")
    for observer, measured in rows.items():
        for row in measured:
            print(f"{observer:10}{row['step_ms']:>10.3f}{row['cpu_ms']:>20.3f}")
    result = {
        "step_ratio": round(statistics.median(ratios), 4),
        "step_ratio_min": round(min(ratios), 4),
        "step_ratio_max": round(max(ratios), 4),
        "cpu_ratio": round(statistics.median(cpu), 4),
        "observer_cores": round(statistics.median(row["observer"] for row in rows["on"]), 5),
        "observer_start_s": statistics.median(row["observer_start_s"] for row in rows["on"]),
        "observer_mb": round(statistics.median(row["observer_bytes"] for row in rows["on"]) / 1e6, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
