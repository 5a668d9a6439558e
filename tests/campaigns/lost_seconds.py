"""Measure what a fault costs on each engine: until it is told, its attempt is over, and the job trains again.

Usage: `.venv/bin/python -m tests.campaigns.lost_seconds [--engines process,docker,ssh,slurm] [--times 3]` from the root
of the repository, as root; `tests.campaigns.hangs` says what the engines need. Two ranks on two hosts take steps of 0.1
s and save at each fifth; the fault comes at step `--at`, by default the 13th, before any standby is there. The last
line is JSON: for each engine and fault the medians, in seconds after the fault. docs/understand/restarts.md has the
table. The engine `alone` is `ssh` with three hosts, the default heartbeat and the client's network cut: a supervisor is
killed, and machines are cut off.

    told       an event names the fault; a lost rank or host is told by the end of the attempt
    over       the next attempt is announced
    began      the script of the next attempt runs its first line
    trains     its first step ends
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.campaigns.hangs import engine, in_folder, submit

_SECONDS = 180.0
SCRIPT = """
import time
print(f"began {time.time()}", flush=True)
import os, signal
from pathlib import Path
import torch
import torch.distributed as dist
from herringbone_contract.events.script import log_metrics

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), Path(os.environ["SM_CHECKPOINT_DIR"])
files = sorted(folder.glob("step-*.pt"))
first = torch.load(files[-1])["step"] if files else 0
at = int(os.environ["AT"])
for step in range(first, at + 47):
    time.sleep(0.1)
    gradient = torch.ones(4)
    loss = 1.0
    if step == at and first == 0:
        if rank == 1:
            # The line must leave before the supervisor dies.
            print(f"fault {time.time() + 0.3}", flush=True)
            time.sleep(0.3)
            if os.environ["FAULT"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ["FAULT"] == "lost":
                os.kill(os.getppid(), signal.SIGKILL)
            while os.environ["FAULT"] in ("hang", "busy"):
                time.sleep(0.0 if os.environ["FAULT"] == "busy" else 1e6)
        loss = float("nan") if os.environ["FAULT"] == "nan" and rank == 1 else loss
    dist.all_reduce(gradient)
    log_metrics({"loss": loss}, step=step)
    print(f"step {step} {time.time()}", flush=True)
    if step % 5 == 4:
        if rank == 0 or os.environ["ALL_SAVE"] == "yes":
            torch.save({"step": step + 1}, folder / "part")
            os.replace(folder / "part", folder / f"step-{step:03}.pt")
        dist.barrier()
"""
FAULTS = ("killed", "lost", "hang", "busy", "nan")
# With the client away: a supervisor is killed; the last machine, and the first one, which decides, are cut off.
ALONE = ("lost", "last-cut", "first-cut")


def run(settings: dict[str, Any], fault: str, at: int) -> dict[str, float]:
    """Run one job, and return its moments in seconds after the fault."""
    job = submit(
        settings,
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        hang_timeout=4,
        fault_policies={"nan_loss": "restart"},
        # A rank that is killed is the script's own failure.
        log_policies={"fault ": "restart"} if fault == "killed" else {},
        max_retry_attempts=1,
        environment={
            "FAULT": fault,
            "OMP_NUM_THREADS": "1",
            "ALL_SAVE": "yes" if "backend" in settings else "no",
            "AT": str(at),
            **({"HERRINGBONE_STANDBY": "off"} if os.environ.get("NO_STANDBY") else {}),
        },
    )
    if job.wait(timeout=_SECONDS).status != "Completed":
        raise RuntimeError(f"{fault}: {job.status}: {[line.text for line in job.logs()][-5:]}")
    text = "\n".join(line.text for line in job.logs())
    began = float(re.search(r"fault ([\d.]+)", text)[1])  # type: ignore[index]
    steps = [(int(step), float(when)) for step, when in re.findall(r"step (\d+) ([\d.]+)", text)]
    events = list(job.events())
    over = next(event["t"] for event in events if event["kind"] == "state" and event["state"] == "Restarting")
    told = min((event["t"] for event in events if event["kind"] in ("hang", "fault")), default=over)
    return {
        "told": told - began,
        "over": over - began,
        "began": min(float(when) for when in re.findall(r"began ([\d.]+)", text) if float(when) > began) - began,
        "trains": min(when for step, when in steps if when > over) - began,
        "redone": max(step for step, when in steps if when < over)
        + 1
        - min(step for step, when in steps if when > over),
    }


@contextlib.contextmanager
def laptop_closed(job: Any, machines: Any) -> Iterator[None]:
    job._backend._close(job.name)
    machines.cut("client")
    try:
        yield
    finally:
        for name in ("client", *machines.names):
            machines.reconnect(name)


def run_alone(settings: dict[str, Any], fault: str, at: int) -> dict[str, float]:
    """Run one job whose client is away from the fault on, and return its moments in seconds after the fault."""
    machines = settings["machines"]
    job = submit(
        settings,
        instance_count=3,
        min_instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        max_retry_attempts=1,
        environment={"FAULT": "", "OMP_NUM_THREADS": "1", "ALL_SAVE": "yes", "AT": str(at)},
    )

    def await_moment(attempt: str, pattern: str) -> float:
        """Return the time of a line on the machines' disks, which all are ours."""
        while True:
            for name in machines.names:
                for log in (machines.work(name) / "jobs" / attempt / "logs").glob("algo-*.log"):
                    if match := re.search(rf"{pattern} ([\d.]+)\n", log.read_text(errors="replace")):
                        return float(match[1])
            if time.monotonic() > limit:
                raise RuntimeError(f"{fault}: {attempt} has no {pattern!r}")
            time.sleep(0.05)

    limit = time.monotonic() + _SECONDS
    await_moment(job.name, f"step {at}")
    with laptop_closed(job, machines):
        began = time.time()
        if fault == "lost":
            for pid in machines.pids(machines.names[-1], "-m herringbone_entry"):
                os.kill(pid, signal.SIGKILL)
        else:
            machines.cut(machines.names[-1 if fault == "last-cut" else 0])
        moments = [await_moment(f"{job.name}.2", pattern) - began for pattern in ("began", r"step \d+")]
    if job.wait(timeout=_SECONDS).status != "Completed":
        raise RuntimeError(f"{fault}: {job.status}: {[line.text for line in job.logs()][-5:]}")
    return dict(zip(("began", "trains"), moments, strict=True))


def main() -> int:
    """Run all pairs of an engine and a fault, and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="process,docker,ssh,slurm")
    parser.add_argument("--faults", help="by default all of the engine")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--image")
    parser.add_argument("--at", type=int, default=13)
    parser.add_argument("--no-standby", action="store_true", help="measure restarts that import again")
    options = parser.parse_args()
    if options.no_standby:
        os.environ["NO_STANDBY"] = "yes"
    found: dict[str, dict[str, float]] = {}
    with in_folder(SCRIPT) as folder:
        for name in options.engines.split(","):
            alone = name == "alone"
            place = ("ssh", folder / "home", None, "5") if alone else (name, folder / "home", options.image)
            faults = options.faults.split(",") if options.faults else ALONE if alone else FAULTS
            # There the supervisor is the container's first process, which nobody kills from within.
            faults = [fault for fault in faults if (name, fault) != ("docker", "lost")]
            with engine(*place) as settings:
                for fault in faults:
                    runs = [(run_alone if alone else run)(settings, fault, options.at) for _ in range(options.times)]
                    medians = {each: round(statistics.median(one[each] for one in runs), 2) for each in runs[0]}
                    found[f"{name} {fault}"] = medians
                    print(f"{name:8} {fault:8} {medians}", flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
