"""Cut the links between three machines at random while faults end the attempts of a job that nobody looks at.

Usage: `.venv/bin/python -m tests.campaigns.alone [--first 0] [--count 50]` from the root of the repository, as root,
after `tests/ssh/setup`. A schedule follows from its number, so `--first` goes on where an earlier run has ended.

moments      every direction of every link is cut or whole, anew; a process is killed or stopped for a while;
             the client is there or away
afterwards   all is whole, and the client waits for the job's end

Ranks of no two attempts may run at a time, by notes of their own and by the records of all machines. The job ends
Completed, with the weights of an undisturbed run, or Failed because its attempts are used up. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from tests.ssh.machines import Machines, missing, stopped_masters
from tests.ssh.test_alone import attempts_on
from tests.ssh.test_resume import TRAINS, weights

RETRIES, STEPS, MOMENTS = 6, 60, 8
_ENDS_WITHIN = 240.0
NAMES = ("h-1", "h-2", "h-3")
# What is killed, or stopped for some seconds.
TARGETS = {
    "supervisor": "-m herringbone_entry",
    "controller": "-m herringbone.controller",
    "keeper": "herringbone.backends.ssh.keepers",
}
# The ranks' own word for it that they run: a line ten times a second, into a file of the attempt and the process.
_NOTES = """
import threading
def note():
    attempt = Path(os.environ["SAGEMAKER_BASE_DIR"]).parts[-4]
    with open(f"{os.environ['NOTES']}/{attempt}:{os.getpid()}", "a", buffering=1) as file:
        while True:
            print(time.time(), file=file)
            time.sleep(0.1)
threading.Thread(target=note, daemon=True).start()
rank, size"""
SCRIPT = (
    TRAINS.replace("\nrank, size", _NOTES, 1)
    .replace("step < 30", f"step < {STEPS}")
    .replace("    step += 1\n", "    step += 1\n    time.sleep(0.25)\n")
)


class Moment(NamedTuple):
    """A part of a schedule: how long it lasts, the directions that are cut, the fault, and whether a client looks."""

    seconds: float
    cut: tuple[tuple[str, str], ...]
    fault: tuple[str, str, str] | None
    looks: bool


def schedule(number: int) -> list[Moment]:
    """Return the schedule with a number.

    >>> schedule(3) == schedule(3) != schedule(4)
    True
    """
    chance = random.Random(number)
    moments = []
    for _ in range(MOMENTS):
        share, both = chance.choice([0.0, 0.0, 0.3, 0.6]), chance.random() < 0.5
        cut = {pair for pair in permutations(NAMES, 2) if chance.random() < share}
        fault = (chance.choice([*TARGETS]), chance.choice(NAMES), chance.choice(["kill", "stop"]))
        # A killed keeper never comes back, and two of them end the attempts of machines alone.
        fault = ("keeper", fault[1], "stop") if fault[0] == "keeper" and chance.random() < 0.8 else fault
        moments.append(
            Moment(
                chance.uniform(1.0, 7.0),
                tuple(sorted(cut | {(other, one) for one, other in cut} if both else cut)),
                fault if chance.random() < 0.5 else None,
                chance.random() < 0.3,
            )
        )
    return moments


def plant(machines: Machines, fault: tuple[str, str, str]) -> threading.Timer | None:
    """Kill or stop a process of a machine; return what makes a stopped one go on."""
    target, name, how = fault
    pids = machines.pids(name, TARGETS[target])

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    if how == "kill":
        return None
    timer = threading.Timer(9.0, send, [signal.SIGCONT])
    timer.start()
    return timer


def spans(notes: Path) -> dict[int, tuple[float, float]]:
    """Return from when to when ranks of each attempt ran, by their own notes."""
    times: dict[int, list[float]] = {}
    for file in notes.iterdir():
        number = int(file.name.partition(":")[0].partition(".")[2] or 1)
        times.setdefault(number, []).extend(float(line) for line in file.read_text().split("\n")[:-1])
    return {number: (min(found), max(found)) for number, found in times.items() if found}


def overlaps(machines: Machines, job: str, notes: Path) -> list[str]:
    """Return what speaks for ranks of two attempts at a time."""
    # The end of a controller that was killed is that of the look at it.
    rows = [row for row in attempts_on(machines, job) if not row[4]]
    wrong = [
        f"attempt {number} began on {name} at {begin:.2f}, and attempt {other} ended on {elsewhere} at {end}"
        for number, name, begin, *_ in rows
        for other, elsewhere, _, end, _ in rows
        if other < number and (end is None or end > begin)
    ]
    ran = sorted(spans(notes).items())
    return wrong + [
        f"ranks of attempt {number} ran until {end:.2f}, those of attempt {later} from {begin:.2f} on"
        for (number, (_, end)), (later, (begin, _)) in pairwise(ran)
        if end > begin
    ]


def told_by(machines: Machines, job: str) -> list[str]:
    """Return what the machines know of a job: for people who look for a mistake."""
    rows = [
        f"{row.name} on {name}: {row.status}, {row.secondary_status}, {row.description}, {row.failure}"
        for name in machines.names
        for row in JobIndex(machines.work(name) / "index.sqlite").all()
        if row.name.partition(".")[0] == job
    ]
    logs = [f"{name}: {(machines.work(name) / 'keepers.log').read_text()[-900:]}" for name in machines.names]
    return ["", *rows, *logs]


class Site:
    """Three machines, and a client with a home of its own."""

    def __init__(self, machines: Machines, folder: Path, transport: OpenSSHTransport) -> None:
        self.machines, self.folder, self.transport = machines, folder, transport
        self.home = Home(folder / "home")

    def backend(self) -> SshBackend:
        environ = {"HERRINGBONE_HEARTBEAT": "1", "HERRINGBONE_JOIN_TIMEOUT": "60"}
        return SshBackend(self.home, self.transport, environ=environ)

    def start(self, name: str) -> tuple[TrainingJob, Path]:
        notes = self.folder / f"notes-{name}"
        notes.mkdir()
        Path("hosts.yaml").write_text(yaml.safe_dump(self.machines.inventory()))
        Path("train.py").write_text(SCRIPT)
        backend = self.backend()
        estimator = Estimator(
            "train.py",
            instance_type="ssh:hosts.yaml",
            instance_count=3,
            max_retry_attempts=RETRIES,
            min_instance_count=1,
            environment={"NOTES": str(notes), "HOLDS": ""},
        )
        return TrainingJob.submit(plan_request(estimator._asked(None), backend, name), backend), notes

    def disturb(self, job: TrainingJob, moments: list[Moment]) -> None:
        """Let a schedule run over a job."""
        job._backend._close(job.name)  # type: ignore[attr-defined]
        timers = []
        looks, is_over = threading.Event(), threading.Event()

        def look() -> None:
            # Another process in all but name: without the plan's secrets and open connections.
            other = TrainingJob(job.name, self.backend())
            while not is_over.is_set():
                if looks.wait(0.2):
                    _ = other.status
                time.sleep(0.2)

        client = threading.Thread(target=look)
        client.start()
        try:
            for moment in moments:
                (self.machines.reconnect if moment.looks else self.machines.cut)("client")
                (looks.set if moment.looks else looks.clear)()
                self.machines.sever(moment.cut)
                if moment.fault is not None:
                    timers.append(plant(self.machines, moment.fault))
                time.sleep(moment.seconds)
        finally:
            self.machines.sever(())
            self.machines.reconnect("client")
            is_over.set()
            client.join()
            for timer in filter(None, timers):
                timer.join()

    def run(self, number: int, whole: list[float]) -> tuple[str, str]:
        """Run one schedule; return how the job ended, and what is wrong."""
        job, notes = self.start(f"cut-{number}")
        self.disturb(job, schedule(number))
        with contextlib.suppress(TimeoutError):
            job.wait(timeout=_ENDS_WITHIN)
        status, wrong = job.status, overlaps(self.machines, job.name, notes)
        attempts = len(spans(notes))
        if status == "Completed":
            if weights(job) != pytest.approx(whole, abs=1e-6):
                wrong.append("the weights are not those of an undisturbed run")
        elif status == "Failed":
            told = job.failure.render() if job.failure is not None else ""
            texts = [line.text for line in job.logs(host="algo-1") if line.rank is None]
            if not any(f"attempt {RETRIES + 1} of {RETRIES + 1} has failed, too" in text for text in texts):
                wrong.append(f"it failed in attempt {attempts}: {told}: {texts[-3:]}")
        else:
            wrong.append(f"it is {status} after {_ENDS_WITHIN} s")
            job.kill()
        if wrong:
            wrong += told_by(self.machines, job.name)
        return f"{status} in attempt {attempts}", "\n     ".join(wrong)

    def besieged(self, whole: list[float]) -> tuple[str, str]:
        """Run a job while strangers, one of them on a machine of the job, besiege all ports of its keepers."""
        job, _ = self.start("besieged")
        targets = [f"{self.machines.address(name)}:{port}" for name in NAMES for port in self.ports(name)]
        command = [sys.executable, "-m", "tests.ssh.strangers", "20", *targets]
        root = Path(__file__).parents[2]
        strangers = [subprocess.Popen([*inside, *command], cwd=root) for inside in ([], self.machines.inside("h-2"))]
        time.sleep(8)
        plant(self.machines, ("supervisor", "h-3", "kill"))
        for stranger in strangers:
            stranger.wait()
        with contextlib.suppress(TimeoutError):
            job.wait(timeout=_ENDS_WITHIN)
        attempts = 1 + len(job.describe().get("Attempts", []))
        wrong = [] if job.status == "Completed" else told_by(self.machines, job.name)
        if not wrong and weights(job) != pytest.approx(whole, abs=1e-6):
            wrong.append("the weights are not those of an undisturbed run")
        return f"{job.status} in attempt {attempts}, {len(targets)} ports", "\n     ".join(wrong)

    def ports(self, name: str) -> list[int]:
        """Return a machine's open ports among those of keepers and supervisors."""
        found = []
        for port in range(7_590, 7_690):
            with contextlib.suppress(OSError), socket.create_connection((self.machines.address(name), port), timeout=1):
                found.append(port)
        return found


def main() -> int:
    """Run the schedules, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--strangers", action="store_true", help="besiege a job instead of cutting its links")
    options = parser.parse_args()
    if (why := missing()) is not None:
        parser.error(why)
    found: dict[int, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="hbs") as folder,
        tempfile.TemporaryDirectory(prefix="hbc") as control,
        Machines(3, Path(folder)) as machines,
        stopped_masters(Path(control)),
    ):
        client = Path(folder, "client")
        (client / "home").mkdir(parents=True)
        os.environ["HERRINGBONE_HOME"] = str(client / "home")
        os.chdir(client)
        transport = OpenSSHTransport(ssh=("ssh", "-F", str(machines.config)), control=control)
        site = Site(machines, client, transport)
        job, _ = site.start("whole")
        whole = weights(job.wait(timeout=120))
        if options.strangers:
            ended, wrong = site.besieged(whole)
            print(f"{ended}  {wrong or 'right'}")
            return bool(wrong)
        for number in range(options.first, options.first + options.count):
            began = time.monotonic()
            ended, found[number] = site.run(number, whole)
            print(f"{number:4} {time.monotonic() - began:6.1f} s  {ended}  {found[number] or 'right'}", flush=True)
    wrong = {number: text for number, text in found.items() if text}
    print(json.dumps({"schedules": len(found), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
