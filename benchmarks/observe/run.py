"""Measure what the observer of a host costs a job of two ranks: its CPU time, and the ranks' step time in turn.

Usage: python benchmarks/observe/run.py [--seconds 60] [--turns 40] [--metrics 1]. The last line is JSON.

Two jobs of the same script, one without an observer, tell the CPU time of all of Herringbone's processes. A third one
freezes and thaws its observer in turn, every second, and compares the step times: within one job, because the load of a
machine changes less from one second to the next than from one job to the next.
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

# Two ranks that compute on one thread each and sum gradients, with metrics of each step: a small model trains so.
SCRIPT = """
import argparse, json, os, signal, time
import torch
import torch.distributed as dist
from herringbone_contract.events import emit

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float)
parser.add_argument("--turns", type=int)
parser.add_argument("--metrics", type=int)
arguments = parser.parse_args()


def read(pid):
    with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline", "rb") as command:
        fields = stat.read().rpartition(")")[2].split()
        return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), command.read()


def find():
    '''Return the pids of this host's supervisor, of its controller, and of its observer if it has one.'''
    ancestor = os.getppid()
    while ancestor > 1:
        # mpirun is one of the ancestors, and its arguments name a program of ours as well.
        if b"herringbone_entry" in read(ancestor)[2]:
            pid = ancestor
        ancestor = read(ancestor)[0]
    pids = {"supervisor": pid, "controller": read(pid)[0]}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent, _, command = read(name)
        except OSError:
            continue
        if parent == pid and b"observer.main" in command:
            pids["observer"] = int(name)
    return pids


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.randn(64, 512)
steps = 0


def train(count):
    global steps
    begin = time.perf_counter()
    for _ in range(count):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        for number in range(arguments.metrics):
            emit.metric(f"loss{number}", value, steps)
        steps += 1
    return time.perf_counter() - begin


train(20)
# The observer starts a second after the ranks.
time.sleep(3)
count = torch.tensor(max(1, round(50 / train(50))))
dist.broadcast(count, 0)
turns = []
pids = find()
cpu = {name: read(pid)[1] for name, pid in pids.items()}
begin, first = time.perf_counter(), steps
# A count of steps of about a second, so that both ranks agree on the end of a turn.
for turn in range(arguments.turns * 4 if arguments.turns else round(arguments.seconds)):
    if arguments.turns and dist.get_rank() == 0:
        # On, off, off, on: a load that grows evenly meets both alike.
        frozen = turn % 4 in (1, 2)
        os.kill(pids["observer"], signal.SIGSTOP if frozen else signal.SIGCONT)
    turns.append(train(int(count)))
seconds = time.perf_counter() - begin
row = {
    "turns": turns,
    "step_ms": seconds / (steps - first) * 1000,
    "cores": {name: (read(pid)[1] - cpu[name]) / seconds for name, pid in pids.items()},
    "start_s": cpu.get("observer"),
    "mb": None,
}
if "observer" in pids:
    os.kill(pids["observer"], signal.SIGCONT)
    with open(f"/proc/{pids['observer']}/statm") as statm:
        row["mb"] = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
begin = time.perf_counter()
for number in range(500):
    emit.metric("cost", 0.5, number)
row["emit_us"] = (time.perf_counter() - begin) / 500 * 1e6
if dist.get_rank() == 0:
    with open(os.environ["SM_OUTPUT_DATA_DIR"] + "/row.json", "w") as file:
        json.dump(row, file)
dist.destroy_process_group()
"""
# mpirun, because a host without GPUs has one rank under the other strategies.
RANKS = {"mpi": {"enabled": True, "processes_per_host": 2}}


def measure(folder: Path, observer: str, **hyperparameters: float) -> dict[str, Any]:
    estimator = PyTorch(
        "train.py",
        source_dir=str(folder / "code"),
        instance_type="local_process",
        distribution=RANKS,
        base_job_name="observe",
        hyperparameters=hyperparameters,
        environment={"HERRINGBONE_OBSERVER": observer},
    )
    with contextlib.redirect_stdout(io.StringIO()):
        job = estimator.fit()
        job.download("output", str(folder / job.name))
    row: dict[str, Any] = json.loads((folder / job.name / "row.json").read_text())
    return row


def ratios(turns: list[float]) -> list[float]:
    """Return the step time with the observer over that without, of each four turns: on, off, off, on."""
    fours = [turns[start : start + 4] for start in range(0, len(turns), 4)]
    return [(on + again) / (off + too) for on, off, too, again in fours]


def quiet_ratio(turns: list[float]) -> float:
    """Return the ratio of the tenth of the turns in which the machine disturbed the ranks least."""
    on, off = (
        sorted(turn for number, turn in enumerate(turns) if (number % 4 in (1, 2)) == frozen)
        for frozen in (False, True)
    )
    best = max(1, len(on) // 10)
    return sum(on[:best]) / sum(off[:best])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of each of the two jobs whose CPU time counts"
    )
    parser.add_argument("--turns", type=int, default=40, help="of four seconds each")
    parser.add_argument("--metrics", type=int, default=1, help="metrics that each rank sends at each step")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HERRINGBONE_HOME"] = f"{folder}/home"
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        rows = {
            observer: measure(folder, observer, seconds=arguments.seconds, turns=0, metrics=arguments.metrics)
            for observer in ("off", "on")
        }
        turns = measure(folder, "on", seconds=0, turns=arguments.turns, metrics=arguments.metrics)["turns"]
    print(f"{'observer':10}{'step ms':>10}   cores of Herringbone's processes")
    for observer, row in rows.items():
        cores = "  ".join(f"{process} {share:.4f}" for process, share in row["cores"].items())
        print(f"{observer:10}{row['step_ms']:>10.2f}   {cores}")
    of_turns = ratios(turns)
    spread = statistics.stdev(of_turns) / len(of_turns) ** 0.5
    total = {observer: sum(row["cores"].values()) for observer, row in rows.items()}
    result = {
        "observer_cores": round(rows["on"]["cores"]["observer"], 5),
        "extra_cores": round(total["on"] - total["off"], 5),
        "observer_start_s": rows["on"]["start_s"],
        "observer_mb": round(rows["on"]["mb"], 1),
        "emit_us": round(rows["on"]["emit_us"], 1),
        "step_ratio": round(statistics.median(of_turns), 4),
        "step_ratio_error": round(spread, 4),
        "step_ratio_quiet": round(quiet_ratio(turns), 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
