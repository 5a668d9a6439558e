"""Let several processes queue jobs for a few fake GPUs, kill whatever is there at any moment, and check the line.

Usage: python -m tests.campaigns.gpu_line [--jobs 50] [--submitters 5] [--gpus 4] [--kills 20] [--seed 1]

Submitters, waiters, controllers and supervisors are real processes; a supervisor holds a lock of each GPU that it was
given, so that two jobs on one GPU find out by themselves. The last line is JSON. The exit code is 1 when a GPU was
given twice or is lost, when a job did not end, when more jobs failed than processes were killed, or when a job was
overtaken although it could have started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

NVIDIA_SMI = '#!/bin/sh\n[ "$1" = -L ] || exit 0\n'
SUPERVISOR = """
import fcntl, json, os, select, sys, time
folder, base = os.environ["CAMPAIGN"], os.environ["SAGEMAKER_BASE_DIR"]
gpus, job = os.environ["CUDA_VISIBLE_DEVICES"].split(","), os.environ["TRAINING_JOB_NAME"]
seconds = json.loads(json.load(open(base + "/input/config/hyperparameters.json"))["seconds"])
held = [open(f"{folder}/gpus/{gpu}", "w") for gpu in gpus]
for gpu, file in zip(gpus, held):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{folder}/violations", "a").write(f"{job} {gpu}\\n")
begin = time.time()
# End-of-file: the controller is gone.
gone, _, _ = select.select([int(os.environ["HERRINGBONE_LIFELINE_FD"])], [], [], seconds)
with open(f"{folder}/runs", "a") as log:
    log.write(json.dumps({"job": job, "gpus": gpus, "begin": begin, "end": time.time()}) + "\\n")
sys.exit(143 if gone else 0)
"""
SUBMITTER = """
import json, sys, time
from herringbone import Estimator
for name, gpus, seconds in json.loads(sys.argv[1]):
    Estimator("train.py", instance_type="local_process", gpus=gpus, hyperparameters={"seconds": seconds}).fit(
        wait=False, logs=False, queue=True, job_name=name)
"""
KINDS = {
    "herringbone.backends.waiter": "waiter",
    "herringbone.controller": "controller",
    "herringbone_entry": "supervisor",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    for name, number in (("jobs", 50), ("submitters", 5), ("gpus", 4), ("kills", 20), ("seed", 1), ("limit", 600)):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"default: {number}")
    with tempfile.TemporaryDirectory(prefix="hb-queue-") as folder:
        results = Campaign(Path(folder), parser.parse_args()).run()
    print(json.dumps(results))
    return int(bool(results["wrong"]))


class Campaign:
    """One run in a folder of its own: `Campaign(folder, arguments).run()`."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder, self._arguments = folder, arguments
        self._chance = random.Random(arguments.seed)
        self._kills: list[str] = []
        self._submitters: dict[int, subprocess.Popen[bytes]] = {}
        self._lists: dict[int, list[tuple[str, int, float]]] = {}

    def run(self) -> dict[str, Any]:
        """Queue all jobs, kill, wait for the ends, and return what was seen."""
        self._prepare()
        begin = time.monotonic()
        for number in range(self._arguments.submitters):
            self._lists[number] = [self._job(number, at) for at in range(self._jobs_of(number))]
        for number in self._lists:
            self._submit(number)
        deadline = begin + self._arguments.limit
        while time.monotonic() < deadline and not self._is_over():
            # Longer than a job's start takes on a machine with little to do, so that each kind is there at some time.
            time.sleep(self._chance.uniform(0.05, 1.5))
            if len(self._kills) < self._arguments.kills:
                self._kill_one()
        seconds = time.monotonic() - begin
        results = self._judge()
        return {"seconds": round(seconds, 1), "kills": dict(Counter(self._kills)), **results}

    def _prepare(self) -> None:
        folder = self._folder
        for name in ("bin", "fake/herringbone_entry", "gpus", "tmp"):
            (folder / name).mkdir(parents=True)
        lines = [f'echo "GPU {number}: NVIDIA Fake (UUID: GPU-{number})"' for number in range(self._arguments.gpus)]
        (folder / "bin/nvidia-smi").write_text(NVIDIA_SMI + "\n".join(lines) + "\n")
        (folder / "bin/nvidia-smi").chmod(0o755)
        (folder / "fake/herringbone_entry/__init__.py").touch()
        (folder / "fake/herringbone_entry/__main__.py").write_text(SUPERVISOR)
        (folder / "train.py").touch()
        os.environ |= {
            "CAMPAIGN": str(folder),
            "HERRINGBONE_HOME": str(folder / "home"),
            "HERRINGBONE_SLOTS": str(folder / "slots"),
            "HERRINGBONE_REPORT": "off",
            "TMPDIR": str(folder / "tmp"),
            "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}",
            # The supervisor of these jobs is the one above.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "fake"), os.environ.get("PYTHONPATH")))),
        }
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        tempfile.tempdir = str(folder / "tmp")

    def _jobs_of(self, number: int) -> int:
        whole, rest = divmod(self._arguments.jobs, self._arguments.submitters)
        return whole + (number < rest)

    def _job(self, number: int, at: int) -> tuple[str, int, float]:
        gpus = min(self._chance.choice((1, 1, 1, 2, 2, 4)), self._arguments.gpus)
        return f"s{number}-{at}", gpus, round(self._chance.uniform(0.05, 0.4), 2)

    def _submit(self, number: int) -> None:
        """Start a submitter for those of its jobs that have no row yet."""
        known = {name for name, _ in self._rows()}
        missing = [job for job in self._lists[number] if job[0] not in known]
        command = [sys.executable, "-c", SUBMITTER, json.dumps(missing)]
        with (self._folder / f"submitter-{number}.log").open("ab") as log:
            self._submitters[number] = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)

    def _rows(self) -> list[tuple[str, Any]]:
        from herringbone.backends.registry import backend_named
        from herringbone.records.home import find_home
        from herringbone.records.index import JobIndex

        backend = backend_named("local_process")
        return [(name, backend.describe(name)) for name in JobIndex(find_home().index).names()]

    def _is_over(self) -> bool:
        for number, submitter in self._submitters.items():
            if submitter.poll() not in (None, 0):
                self._submit(number)
        if any(submitter.poll() is None for submitter in self._submitters.values()):
            return False
        rows = self._rows()
        return len(rows) == self._arguments.jobs and all(record.done for _, record in rows)

    def _kill_one(self) -> None:
        """Kill a process of the kind that was killed least: most of the time, most processes are of one kind."""
        victims: dict[str, list[int]] = {}
        for pid, kind in self._processes():
            victims.setdefault(kind, []).append(pid)
        if victims:
            kind = min(sorted(victims), key=lambda kind: (self._kills.count(kind), self._chance.random()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(victims[kind]), signal.SIGKILL)
                self._kills.append(kind)

    def _processes(self) -> list[tuple[int, str]]:
        running = [(submitter.pid, "client") for submitter in self._submitters.values() if submitter.poll() is None]
        mark = os.fsencode(f"CAMPAIGN={self._folder}")
        for entry in Path("/proc").iterdir():
            # Processes that ended meanwhile, and those of others.
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().decode().split("\0")
                    running += [(int(entry.name), kind) for word, kind in KINDS.items() if word in words]
        return running

    def _judge(self) -> dict[str, Any]:
        rows = dict(self._rows())
        wrong = []
        if (self._folder / "violations").exists():
            wrong.append(f"given twice: {(self._folder / 'violations').read_text()}")
        open_jobs = [name for name, record in rows.items() if not record.done]
        if open_jobs or len(rows) < self._arguments.jobs:
            wrong.append(f"not over: {open_jobs}, {self._arguments.jobs - len(rows)} without a row")
        ends = Counter(record.status for record in rows.values())
        if self._arguments.jobs - ends["Completed"] > len(self._kills):
            wrong.append(f"more failures than kills: {dict(ends)}")
        for late, early in (overtaken := self._overtaken(rows)):
            wrong.append(f"{early} could have started before {late}")
        if missing := self._lost_gpus():
            wrong.append(missing)
        granted = [facts for record in rows.values() if (facts := json.loads(record.facts or "{}").get("Slots"))]
        waits = sorted(facts["Granted"] - facts["Arrival"] for facts in granted)
        return {
            "ends": dict(ends),
            "granted": len(granted),
            "longest_wait": round(waits[-1], 2) if waits else None,
            "overtaken": len(overtaken),
            "left_files": sorted(path.name for path in (self._folder / "slots").iterdir()),
            "wrong": wrong,
        }

    def _overtaken(self, rows: dict[str, Any]) -> list[tuple[str, str]]:
        """Return pairs of jobs of which the later was granted what the earlier one could not start without.

        The earlier one may be asleep at a grant of the later, but then there must be room for both.
        """
        runs = [json.loads(line) for line in (self._folder / "runs").read_text().splitlines()]
        gpus = {name: count for jobs in self._lists.values() for name, count, _ in jobs}
        slots = {name: json.loads(record.facts or "{}").get("Slots") for name, record in rows.items()}
        granted = [(name, facts["Arrival"], facts["Granted"]) for name, facts in slots.items() if facts]
        pairs = []
        for late, late_arrival, late_grant in granted:
            for early, early_arrival, early_grant in granted:
                if early_arrival < late_arrival and late_grant < early_grant:
                    used = sum(len(run["gpus"]) for run in runs if run["begin"] <= late_grant < run["end"])
                    if used + gpus[late] + gpus[early] > self._arguments.gpus:
                        pairs.append((late, early))
        return pairs

    def _lost_gpus(self) -> str:
        from herringbone import Estimator

        os.chdir(self._folder)
        estimator = Estimator(
            "train.py", instance_type="local_process", gpus=self._arguments.gpus, hyperparameters={"seconds": 0}
        )
        try:
            return "" if estimator.fit(logs=False, job_name="last").status == "Completed" else "the last job failed"
        except Exception as error:  # noqa: BLE001 - reported with the other results
            return f"lost: {error}"


if __name__ == "__main__":
    sys.exit(main())
