"""Kill processes of one job by a schedule, and compare its lost time with what `herringbone plan --faults` says.

Usage: `.venv/bin/python -m tests.campaigns.fault_hour [--seconds 3600] [--mtbf 60] [--every 100] [--seed 1]` from the
root of the repository, on a machine without other work. Two hosts are processes of this machine, with a rank each. A
step takes 0.1 s, and rank 0 saves 64 MB at each `every`-th. Faults come with a constant rate from a seeded generator;
half of them kill a rank, half a supervisor. Before, the same job runs for a minute with four faults, for the costs.

The last line is JSON: the `lost` seconds, and what is predicted with the costs of the run before, with those of the run
itself, and with those that `--faults` knows of restarts. `given_the_schedule` is the lost time of a simulated job under
the faults that were injected, `from_the_rate` the expectation with its bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from herringbone import Estimator
from herringbone.prediction.faults.costs import costs_of
from herringbone.prediction.faults.model import Tier, useful_part, with_best_intervals
from herringbone.prediction.faults.options import FaultWords
from herringbone.prediction.faults.spread import ettr_bounds
from tests.campaigns.hangs import in_folder, submit
from tests.campaigns.simulated_faults import Job, random_faults

_PATIENCE = 300.0
_CALIBRATION = (60.0, (12.0, 22.0, 32.0, 42.0))
SCRIPT = """
import os, time
from pathlib import Path

folder, rank = Path(os.environ["FOLDER"]), os.environ["RANK"]
(folder / "part").mkdir(exist_ok=True)
pids = folder / "part" / rank
pids.write_text(f"{os.getpid()} {os.getppid()}")
os.replace(pids, folder / f"pids-{rank}")
import torch
import torch.distributed as dist

notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(kind, value=0.0):
    if rank == "0":
        os.write(notes, f"{kind} {value} {time.time()}\\n".encode())

dist.init_process_group("gloo")
state = torch.zeros(16_000_000)
checkpoint, every, step = folder / "checkpoint.pt", int(os.environ["EVERY"]), 0
print("script begins", flush=True)
note("began")
began = time.time()
if checkpoint.exists():
    loaded = torch.load(checkpoint)
    state, step = loaded["state"], loaded["step"]
dist.barrier()
note("loaded", time.time() - began)
if rank == "0" and not (folder / "end").exists():
    (folder / "end").write_text(str(time.time() + float(os.environ["SECONDS"])))
dist.barrier()
end = float((folder / "end").read_text())
while True:
    time.sleep(0.1)
    over = torch.tensor([float(time.time() > end)])
    dist.all_reduce(over)
    if over:
        break
    step += 1
    note("step", step)
    if step % every == 0:
        began = time.time()
        if rank == "0":
            torch.save({"state": state, "step": step}, folder / "unfinished")
            os.replace(folder / "unfinished", checkpoint)
        dist.barrier()
        note("saved", time.time() - began)
"""


class Note(NamedTuple):
    """A line of the job: what has ended, a number, and the moment."""

    kind: str
    value: float
    moment: float


def run(folder: Path, seconds: float, every: int, faults: list[float], seed: int) -> tuple[list[Note], list[float]]:
    """Run one job that ends after so many seconds of training; return its notes and the moments of the faults.

    `faults` are seconds after the first step begins. One that comes before the processes of the next attempt run
    waits for them.
    """
    folder.mkdir()
    job = submit(
        {"instance_type": "local_process"},
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        # The line that each attempt has: a rank that is killed is a reason to begin again, too.
        log_policies={"script begins": "restart"},
        max_retry_attempts=100_000,
        max_run=int(seconds + _PATIENCE),
        environment={"FOLDER": str(folder), "EVERY": str(every), "SECONDS": str(seconds), "OMP_NUM_THREADS": "1"},
    )
    injected, generator = [], random.Random(seed)
    begin = _first(folder)
    for fault in faults:
        time.sleep(max(0.0, begin + fault - time.time()))
        while not _kill(folder, generator):
            time.sleep(0.01)
        injected.append(time.time() - begin)
    ended = job.wait(timeout=seconds + _PATIENCE)
    if ended.status != "Completed":
        raise RuntimeError(f"{ended.status}: {[line.text for line in job.logs()][-5:]}")
    return _notes(folder), injected


def _notes(folder: Path) -> list[Note]:
    lines = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
    words = [line.split() for line in lines]
    return [Note(kind, float(value), float(moment)) for kind, value, moment in words]


def _first(folder: Path) -> float:
    """Wait for the first step, and return the moment in which it began."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        for note in _notes(folder):
            if note.kind == "loaded":
                return note.moment
        time.sleep(0.05)
    raise RuntimeError("no first step")


def _kill(folder: Path, generator: random.Random) -> bool:
    """Kill a rank or its supervisor; return False where none runs."""
    pids = [folder / f"pids-{rank}" for rank in range(2)]
    with contextlib.suppress(OSError, ValueError):
        rank, supervisor = map(int, generator.choice(pids).read_text().split())
        victim = generator.choice((rank, supervisor))
        # The number may be another process's by now.
        if os.environ["HERRINGBONE_HOME"].encode() in Path(f"/proc/{victim}/environ").read_bytes():
            os.kill(victim, signal.SIGKILL)
            for path in pids:
                path.unlink(missing_ok=True)
            return True
    return False


class Measured(NamedTuple):
    """The mean costs of the job, in seconds: a step, a save, a load, and from a fault to the load."""

    step: float
    save: float
    load: float
    down: float


def measured(notes: list[Note], faults: list[float]) -> Measured:
    """Return the costs that a run shows."""
    begin = next(note.moment for note in notes if note.kind == "loaded")
    pairs = [pair for pair in itertools.pairwise(notes) if pair[0].kind == pair[1].kind == "step"]
    began = [note.moment - begin for note in notes if note.kind == "began"]
    downs = []
    for fault, after in itertools.zip_longest(faults, faults[1:], fillvalue=math.inf):
        # A fault in a restart begins another one.
        downs += [moment - fault for moment in began if fault < moment < after][:1]
    return Measured(
        step=statistics.mean(right.moment - left.moment for left, right in pairs),
        save=statistics.mean(note.value for note in notes if note.kind == "saved"),
        # That of the first attempt has nothing to load.
        load=statistics.mean([note.value for note in notes if note.kind == "loaded"][1:]),
        down=statistics.mean(downs),
    )


def progress(notes: list[Note]) -> float:
    """Return the steps that the job has made at its end, without those that are lost.

    >>> progress([Note("step", 1, 0.1), Note("saved", 0.1, 0.2), Note("step", 2, 0.3), Note("loaded", 0.1, 5.0)])
    1
    """
    done = saved = 0.0
    for note in notes:
        if note.kind == "step":
            done = note.value
        elif note.kind == "saved":
            saved = done
        elif note.kind == "loaded":
            done = saved
    return done


def answers(costs: Measured, lost: float, faults: list[float], options: argparse.Namespace) -> dict[str, Any]:
    """Return what is predicted from some costs, next to the lost time of a run."""
    every, mtbf, seconds = options.every, options.mtbf, options.seconds
    tier = Tier(name="disk", blocked=costs.save, save=costs.save, load=costs.load, interval=every * costs.step)
    simulated = seconds - Job([tier], costs.down).run([(fault, 0) for fault in faults], seconds)
    low, high = ettr_bounds([tier], 1 / mtbf, costs.down, seconds)
    best = with_best_intervals([tier], 1 / mtbf, costs.down, costs.step)[0]
    return {
        "costs": {name: round(value, 3) for name, value in costs._asdict().items()},
        "given_the_schedule": round(simulated, 1),
        "error": round(simulated / lost - 1, 3),
        "from_the_rate": round(seconds * (1 - useful_part([tier], 1 / mtbf, costs.down)), 1),
        "bounds": [round(seconds * (1 - high), 1), round(seconds * (1 - low), 1)],
        "best_every": round(best.interval / costs.step),
    }


def main() -> int:
    """Run the short job and the long one, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--mtbf", type=float, default=60.0, help="seconds between two faults of the job")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments: list[float] = []
    for moment, _ in random_faults([Tier(name="disk", blocked=0, save=0, load=0)], 1 / options.mtbf, options.seed):
        if moment >= options.seconds - 1:
            break
        moments.append(moment)
    if not moments:
        parser.error("no fault comes in this time; take another --seed")
    with in_folder(SCRIPT) as folder:
        costs = measured(*run(folder / "short", _CALIBRATION[0], options.every, list(_CALIBRATION[1]), seed=0))
        print(f"{costs}; {len(moments)} faults follow", flush=True)
        notes, faults = run(folder / "long", options.seconds, options.every, moments, options.seed)
        own = measured(notes, faults)
        plan = Estimator("train.py", instance_type="local_process", instance_count=2).plan()
        words = FaultWords(mtbf=options.mtbf, of_job=True, step=costs.step, save=costs.save)
        known = costs_of(plan, words, 5.0)
    ways = {
        "measured_before": costs,
        "measured_in_the_run": own,
        "known_to_plan": Measured(costs.step, costs.save, known.ways[0][0].load, known.down),
    }
    lost = options.seconds - progress(notes) * own.step
    result = {name: answers(way, lost, faults, options) for name, way in ways.items()}
    print(json.dumps({"seconds": options.seconds, "faults": len(faults), "lost": round(lost, 1), **result}))
    return 0 if abs(result["measured_before"]["error"]) <= 0.15 else 1


if __name__ == "__main__":
    sys.exit(main())
