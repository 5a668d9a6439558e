"""Measure what watching a job for faults costs its steps: jobs with all watchers and with none, in turn.

Usage: python benchmarks/watching/run.py [--pairs 30] [--steps 16]. The last line is JSON.

On: hang_timeout, stragglers, losses, replicas compared at each tenth step, a metric a step. Off: no hang_timeout, no
observer. Each job's step time is the mean of its steps after the second; a pair's ratio is on over off.
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
from typing import Any

from herringbone import PyTorch

# Two ranks that compute on one thread each, about half a second a step, and sum gradients.
SCRIPT = """
import argparse, json, os, time
import torch
import torch.distributed as dist
from herringbone import log_metrics

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
arguments = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.randn(1024, 1024)
for step in range(arguments.steps):
    if step == 2:
        begin, cpu = time.perf_counter(), time.process_time()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log_metrics({"loss": loss.item()}, step=step)
count = arguments.steps - 2
row = {"step": (time.perf_counter() - begin) / count, "cpu": (time.process_time() - cpu) / count, "loss": loss.item()}
if dist.get_rank() == 0:
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/row.json", "w") as file:
        json.dump(row, file)
dist.destroy_process_group()
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "on": {"hang_timeout": 60, "loss_spike_factor": 100, "check_replicas_every": 10},
    "off": {"hang_timeout": 0, "environment": {"HERRINGBONE_OBSERVER": "off"}},
}


def measure(folder: Path, which: str, steps: int) -> dict[str, float]:
    """Run one job, and return what its rank 0 measured."""
    estimator = PyTorch(
        "train.py",
        source_dir=str(folder / "code"),
        instance_type="local_process",
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
        base_job_name=f"watching-{which}",
        hyperparameters={"steps": steps},
        **SETTINGS[which],
    )
    with contextlib.redirect_stdout(io.StringIO()):
        job = estimator.fit()
        job.download("output", str(folder / job.name))
    row: dict[str, float] = json.loads((folder / job.name / "row.json").read_text())
    return row


def bound(ratios: list[float]) -> dict[str, float]:
    """Return the median ratio, and the upper end of its 95 % interval by the order statistics of a binomial."""
    ordered = sorted(ratios)
    most = min(len(ordered) - 1, round(len(ordered) / 2 + 0.98 * len(ordered) ** 0.5))
    return {"median": round(statistics.median(ordered), 4), "most": round(ordered[most], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=16)
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    rows: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        for pair in range(arguments.pairs):
            # The order changes, as the machine's load grows or shrinks over a pair.
            for which in ("on", "off") if pair % 2 else ("off", "on"):
                rows[which].append(measure(folder, which, arguments.steps))
            print(f"{pair + 1:3}  " + "  ".join(f"{which} {rows[which][-1]}" for which in rows), flush=True)
    pairs = list(zip(rows["on"], rows["off"], strict=True))
    result = {
        "step_s": round(statistics.median(row["step"] for row in rows["off"]), 4),
        "step_ratio": bound([on["step"] / off["step"] for on, off in pairs]),
        "cpu_ratio": bound([on["cpu"] / off["cpu"] for on, off in pairs]),
        "same_loss": len({row["loss"] for row in rows["on"] + rows["off"]}) == 1,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
