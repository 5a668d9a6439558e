"""Make one rank of an unchanged script slow in every way we know; check that it is named with its cause, and no other.

    PYTHONPATH=sdk:contract:entrypoints:parallel .venv-huggingface/bin/python -m tests.campaigns.stragglers [--short]
    PYTHONPATH=sdk:contract:entrypoints:parallel .venv-tf/bin/python -m tests.campaigns.stragglers --others keras

Needs root and control groups of version 1. The last line is JSON. `--healthy 10` runs on a busy machine follow the
planted ones. In each healthy run, and in those whose rank 0 evaluates and saves every ten steps, nobody may be named
for `--seconds`; a rank that then becomes slow must be, which shows that somebody looked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from herringbone import Estimator
from tests.campaigns.straggling import CAUSES, OTHERS, PLANT, PLANTED, SCRIPTS, TORCH

LINE = re.compile(r"straggler: rank (\d+) \((\S+)\) needs \S+ s for a step, (\S+) times [^:]*(?:: (.*))?")
NAMED_SECONDS = 240.0
CGROUPS = Path("/sys/fs/cgroup")
SPIN = [sys.executable, "-c", "while True: pass"]


@contextlib.contextmanager
def running(*commands: list[str]) -> Iterator[None]:
    """Run processes meanwhile."""
    processes = [subprocess.Popen(command, start_new_session=True) for command in commands]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def group(controller: str, name: str, value: str) -> Iterator[str]:
    """Make a control group with one setting meanwhile."""
    folder = CGROUPS / controller / f"straggler-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / name).write_text(value)
        yield str(folder)
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            (CGROUPS / controller / "cgroup.procs").write_text(pid)
        folder.rmdir()


@contextlib.contextmanager
def surroundings(plant: str, data: Path) -> Iterator[str]:
    """Prepare the machine for what is planted; return the control groups of the slow rank."""
    device = os.stat(data.parent).st_dev
    made: Any = contextlib.nullcontext("")
    if plant == "busy":
        last = str(sorted(os.sched_getaffinity(0))[1])
        # Many: other processes of the machine leave this core for those of the other ranks.
        made = running(*[["taskset", "-c", last, *SPIN]] * 24)
    elif plant == "limit":
        made = group("cpu", "cpu.cfs_quota_us", "5000")
    elif plant == "disk":
        rate = f"{os.major(device)}:{os.minor(device)} {2 << 20}"
        made = group("blkio", "blkio.throttle.read_bps_device", rate)
    with made as groups:
        yield groups or ""


def stragglers(job: Any) -> list[tuple[str, ...]]:
    """Return rank, host, ratio and cause of each straggler in the log."""
    return [match.groups("") for line in job.logs(pattern="^straggler:") if (match := LINE.match(line.text))]


def run(script: str, plant: str, *, healthy_seconds: float = 0.0) -> dict[str, Any]:
    """Run one job; return who was named, how soon, and `wrong`, what is not as it must be."""
    with tempfile.TemporaryDirectory(prefix="stragglers-", ignore_cleanup_errors=True) as scratch:
        code, flag, data = Path(scratch, "code"), Path(scratch, "flag"), Path(scratch, "data")
        code.mkdir()
        data.write_bytes(os.urandom(1 << 20))
        text, hosts, distribution = OTHERS[script] if script in OTHERS else (SCRIPTS[script], 3, TORCH)
        (code / "train.py").write_text(text)
        (code / "plant.py").write_text(PLANT)
        os.environ["HERRINGBONE_HOME"] = f"{scratch}/home"
        with surroundings(plant, data) as groups:
            estimator = Estimator(
                "train.py",
                source_dir=str(code),
                instance_type="local_process",
                instance_count=hosts,
                distribution=distribution,
                environment={"PLANT": plant, "FLAG": str(flag), "DATA": str(data), "GROUPS": groups},
            )
            estimator.fit(wait=False)
            job = estimator.latest_training_job
            try:
                return {"script": script, "plant": plant} | watch(job, flag, plant, healthy_seconds)
            finally:
                job.stop(grace=0.1)
                job.wait()


def watch(job: Any, flag: Path, plant: str, healthy_seconds: float) -> dict[str, Any]:
    """Look at the job while it is healthy, then plant, and wait for the name."""
    time.sleep(healthy_seconds)
    early = stragglers(job)
    flag.touch()
    began = time.monotonic()
    named: list[tuple[str, ...]] = []
    while (
        not early
        and not named
        and time.monotonic() - began < NAMED_SECONDS
        and job.status in ("Starting", "InProgress")
    ):
        time.sleep(0.5)
        named = stragglers(job)
    result: dict[str, Any] = {"named": named, "seconds": round(time.monotonic() - began, 1), "wrong": ""}
    cause = CAUSES.get("sleep" if healthy_seconds else plant, "")
    if early:
        result |= {"named": early, "wrong": "somebody is named although all is well"}
    elif [name[:2] for name in named] != [("1", "algo-2")]:
        result["wrong"] = f"nobody else than rank 1 is slow; the job is {job.status}"
    elif cause not in named[0][3]:
        result["wrong"] = f"the cause is {cause!r}"
    return result


def main() -> int:
    """Run all; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one innocent that then straggles")
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--others", default="", help=f"instead, a sleep in each of these: {', '.join(OTHERS)}")
    parser.add_argument("--only", default="", help="a part of SCRIPT-PLANT, or of SCRIPT-healthy")
    arguments = parser.parse_args()
    results = []

    def note(result: dict[str, Any]) -> None:
        results.append(result)
        print(json.dumps(result), flush=True)

    for script in filter(None, arguments.others.split(",")):
        note(run(script, "sleep", healthy_seconds=arguments.seconds))
    if arguments.others:
        arguments.only = "-none"
    for script, plant in () if arguments.short else PLANTED:
        if arguments.only in f"{script}-{plant}":
            note(run(script, plant))
    for script in ("ddp",) if arguments.short else SCRIPTS:
        if arguments.only in f"{script}-seldom":
            note(run(script, "seldom", healthy_seconds=arguments.seconds))
    for number in range(0 if arguments.short else arguments.healthy):
        script = list(SCRIPTS)[number % len(SCRIPTS)]
        if arguments.only in f"{script}-healthy":
            with running(SPIN, SPIN):
                note(run(script, "sleep", healthy_seconds=arguments.seconds))
    wrong = [result for result in results if result["wrong"]]
    print(json.dumps({"runs": len(results), "wrong": wrong}))
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
