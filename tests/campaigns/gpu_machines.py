"""Let jobs wait for fake GPUs of several ssh machines, kill whatever is there at any moment, and check the lines.

Usage: python -m tests.campaigns.gpu_machines [--jobs 20] [--machines 3] [--gpus 4] [--kills 8] [--seed 1]

Needs root, sshd and network namespaces, as tests/ssh. Clients, waiters, connections, agents, controllers and hosts are
real; each host locks a file for each GPU that it sees, so that two jobs on one GPU find out by themselves, and has a
second process that holds the locks as well. The last line is JSON. The exit code is 1 when a GPU was given twice or is
lost, when a job did not end, when more jobs failed than processes were killed, or when a job took what one before it
kept.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.ssh.machines import Machines

TRAIN = """
import fcntl, json, os, sys, time
folder, machine = os.environ["CAMPAIGN"], os.uname().nodename
gpus, job = os.environ["CUDA_VISIBLE_DEVICES"].split(","), os.environ["TRAINING_JOB_NAME"]
held = [open(f"{folder}/gpus/{machine}-{gpu}", "a") for gpu in gpus]
for gpu, file in zip(gpus, held):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{folder}/violations", "a").write(f"{job} {machine} {gpu}\\n")
child = os.fork()
time.sleep(float(os.environ["SM_HP_SECONDS"]))
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
SUBMITTER = """
import json, os, sys
from herringbone import Estimator
from herringbone_contract.errors import HerringboneError
for name, hosts, gpus, seconds in json.loads(sys.argv[1]):
    estimator = Estimator(
        "train.py", instance_type="ssh:hosts.yaml", instance_count=hosts, gpus=gpus,
        hyperparameters={"seconds": seconds}, environment={"CAMPAIGN": os.environ["CAMPAIGN"]})
    try:
        estimator.fit(wait=False, logs=False, queue=True, job_name=name)
    except HerringboneError as error:
        # A killed agent ends a submission that is under way.
        print(name, error, flush=True)
"""
# On the client, and on the machines.
KINDS = {
    "waiter": "herringbone.backends.ssh.waiter",
    "agent": "herringbone.backends.ssh.agent",
    "controller": "herringbone.controller",
}
# A job is in all of its lines so long after its submission, or after its connections broke.
SETTLED_SECONDS = 15.0


@dataclass(frozen=True)
class Grant:
    """A job's claim on one machine, as that machine's own index has it; times are seconds since 1970."""

    job: str
    machine: str
    gpus: int
    arrival: float
    granted: float
    ended: float


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    numbers = {"jobs": 20, "machines": 3, "gpus": 4, "kills": 8, "submitters": 2, "seed": 1, "limit": 900}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"default: {number}")
    arguments = parser.parse_args()
    with (
        # A short path, because it holds sockets.
        tempfile.TemporaryDirectory(prefix="hbs") as folder,
        Machines(arguments.machines, Path(folder)) as machines,
        machines.gpus(arguments.gpus),
    ):
        results = Campaign(Path(folder), machines, arguments).run()
    print(json.dumps(results))
    return int(bool(results["wrong"]))


class Campaign:
    """One run: `Campaign(folder, machines, arguments).run()`."""

    def __init__(self, folder: Path, machines: Machines, arguments: argparse.Namespace) -> None:
        self._folder, self._machines, self._arguments = folder, machines, arguments
        self._chance = random.Random(arguments.seed)
        self._backend: Any = None
        # What was killed, and when.
        self._kills: list[tuple[str, float]] = []
        self._jobs = [self._job(number) for number in range(arguments.jobs)]

    def run(self) -> dict[str, Any]:
        """Queue all jobs, kill, wait for the ends, and return what was seen."""
        self._prepare()
        begin, submitters = time.monotonic(), [self._submit(number) for number in range(self._arguments.submitters)]
        while time.monotonic() < begin + self._arguments.limit and not self._is_over(submitters):
            time.sleep(self._chance.uniform(1, 6))
            if len(self._kills) < self._arguments.kills:
                self._kill_one()
        seconds = time.monotonic() - begin
        results = self._judge()
        return {"seconds": round(seconds), "kills": dict(Counter(kind for kind, _ in self._kills)), **results}

    def _prepare(self) -> None:
        folder = self._folder
        for name in ("client/bin", "gpus"):
            (folder / name).mkdir(parents=True)
        os.chdir(folder / "client")
        Path("bin/ssh").write_text(
            f'#!/bin/sh\nexec /usr/bin/ssh -F {self._machines.config} -o ControlPath=none "$@"\n'
        )
        Path("bin/ssh").chmod(0o755)
        Path("hosts.yaml").write_text(yaml.safe_dump(self._machines.inventory()))
        Path("train.py").write_text(TRAIN)
        os.environ |= {
            "CAMPAIGN": str(folder),
            "HERRINGBONE_HOME": str(folder / "home"),
            "HERRINGBONE_REPORT": "off",
            "PATH": f"{folder}/client/bin{os.pathsep}{os.environ['PATH']}",
        }
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def _job(self, number: int) -> tuple[str, int, int, float]:
        hosts = min(self._chance.choice((1, 1, 1, 2, 2, 3)), self._arguments.machines)
        gpus = min(self._chance.choice((1, 2, 2, 4)), self._arguments.gpus)
        return f"j{number}", hosts, gpus, round(self._chance.uniform(0.5, 5), 1)

    def _submit(self, number: int) -> subprocess.Popen[bytes]:
        jobs = self._jobs[number :: self._arguments.submitters]
        with Path(f"submitter-{number}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-c", SUBMITTER, json.dumps(jobs)], stdout=log, stderr=log)

    def _rows(self) -> dict[str, Any]:
        from herringbone.backends.registry import backend_named
        from herringbone.records.home import find_home
        from herringbone.records.index import JobIndex

        # One for all looks: it keeps the connections by which it follows the jobs.
        self._backend = self._backend or backend_named("ssh")
        return {name: self._backend.describe(name) for name in JobIndex(find_home().index).names()}

    def _is_over(self, submitters: list[subprocess.Popen[bytes]]) -> bool:
        rows = self._rows()
        print(dict(Counter(str(row.secondary_status) for row in rows.values())), file=sys.stderr, flush=True)
        return all(submitter.poll() is not None for submitter in submitters) and all(row.done for row in rows.values())

    def _kill_one(self) -> None:
        """Kill a process of the kind that was killed least, or all connections of a machine."""
        victims = {kind: self._processes(text) for kind, text in KINDS.items()}
        victims["connections"] = list(range(1, self._arguments.machines + 1))
        counts = Counter(kind for kind, _ in self._kills)
        kind = min((kind for kind in victims if victims[kind]), key=lambda kind: (counts[kind], self._chance.random()))
        victim = self._chance.choice(victims[kind])
        if kind == "connections":
            self._machines.kill_sessions(f"h-{victim}")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._kills.append((kind, time.time()))

    def _processes(self, module: str) -> list[int]:
        """Return the processes of this campaign that run a module; machines' paths and the client's are below it."""
        found, mark = [], str(self._folder).encode()
        for entry in Path("/proc").iterdir():
            # Processes that ended meanwhile, and those of others.
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if module.encode() in words and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def _judge(self) -> dict[str, Any]:
        rows, wrong = self._rows(), []
        if (self._folder / "violations").exists():
            wrong.append(f"given twice: {(self._folder / 'violations').read_text()}")
        if open_jobs := [name for name, row in rows.items() if not row.done]:
            wrong.append(f"not over: {open_jobs}")
        ends = Counter(row.status for row in rows.values())
        failures = {name: str(row.failure) for name, row in rows.items() if row.status != "Completed"}
        # All connections of a machine are those of several submissions.
        lost = sum(kind != "connections" for kind, _ in self._kills)
        lost += sum(kind == "connections" for kind, _ in self._kills) * self._arguments.submitters
        if self._arguments.jobs - ends["Completed"] > lost:
            wrong.append(f"more failures than kills: {failures}")
        grants = self._grants()
        overtaken, compared = self._overtaken(grants)
        wrong += [f"{late} took on {machine} what {early} kept" for late, early, machine in overtaken]
        if missing := self._lost_gpus():
            wrong.append(missing)
        waits = sorted(grant.granted - grant.arrival for grant in grants)
        return {
            "ends": dict(ends),
            "failures": failures,
            "grants": len(grants),
            "compared": compared,
            "longest_wait": round(waits[-1], 1) if waits else None,
            "wrong": wrong,
        }

    def _grants(self) -> list[Grant]:
        from herringbone.records.home import Home
        from herringbone.records.index import JobIndex

        grants = []
        for machine in self._machines.names:
            for row in JobIndex(Home(self._machines.work(machine)).index).all():
                slots = json.loads(row.facts or "{}").get("Slots")
                if slots:
                    times = (slots["Arrival"], slots["Granted"], row.ended or time.time())
                    grants.append(Grant(row.name, machine, len(slots["Devices"]), *times))
        return grants

    def _overtaken(self, grants: list[Grant]) -> tuple[list[tuple[str, str, str]], int]:
        """Return triples of a later job, an earlier one and the machine on which the later one took what was kept.

        And the number of grants, each with each job that waited meanwhile, which were compared.
        """
        first_grant: dict[str, Grant] = {}
        for grant in grants:
            first_grant[grant.job] = min(first_grant.get(grant.job, grant), grant, key=lambda one: one.granted)
        wants = {name: gpus for name, _, gpus, _ in self._jobs}
        found, compared = [], 0
        for late in grants:
            others = [other for other in grants if other.machine == late.machine and other.job != late.job]
            used = sum(other.gpus for other in others if other.granted <= late.granted < other.ended)
            for early in first_grant.values():
                has_waited = early.arrival + SETTLED_SECONDS < late.granted < early.granted
                is_whole = not any(0 <= late.granted - at < SETTLED_SECONDS for _, at in self._kills)
                is_kept = used + late.gpus + wants.get(early.job, 0) > self._arguments.gpus
                # Either order counts: a grant of the one that came first shows that the check would see the other.
                compared += has_waited and is_whole
                if early.arrival < late.arrival and has_waited and is_whole and is_kept:
                    found.append((late.job, early.job, late.machine))
        return found, compared

    def _lost_gpus(self) -> str:
        from herringbone import Estimator

        estimator = Estimator(
            "train.py",
            instance_type="ssh:hosts.yaml",
            instance_count=self._arguments.machines,
            gpus=self._arguments.gpus,
            hyperparameters={"seconds": 0},
            environment={"CAMPAIGN": str(self._folder)},
        )
        try:
            return "" if estimator.fit(logs=False, job_name="last").status == "Completed" else "the last job failed"
        except Exception as error:  # noqa: BLE001 - reported with the other results
            return f"lost: {error}"


if __name__ == "__main__":
    sys.exit(main())
