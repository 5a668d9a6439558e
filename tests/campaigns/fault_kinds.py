"""The faults of `faults.py`: what is broken in a running job, and what must come of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from herringbone import TrainingJob
from herringbone.records.home import find_home
from herringbone.records.index import JobIndex
from herringbone.slots.places import place_texts
from herringbone.views.page.live import LiveJob

SCRIPT = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
rank = os.environ.get("RANK", "0")
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text("w" * 1000)
print("ready", rank, os.getpid(), child.pid, flush=True)
BODY
until = time.monotonic() + float(os.environ["SECONDS_TO_RUN"])
while time.monotonic() < until:
    time.sleep(0.05)
child.kill()
"""
MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
# Name -> number of hosts and distribution.
LAYOUTS: dict[str, tuple[int, dict[str, object] | None]] = {
    "plain": (1, None),
    "two hosts": (2, {"torch_distributed": {"enabled": True}}),
    "mpi": (1, MPI),
    "mpi on two hosts": (2, MPI),
}
# The layout of a job in a container, which `signal_faults` leaves out: pids in a container are not those here.
CONTAINER = "container"
# A disk stays full for so long; the job's script ends meanwhile.
FULL_SECONDS = 4.0
# Three heartbeats of a second, and what a busy machine adds.
NAMED_SECONDS = 8.0
# A grace of a second, and the margin after which a controller kills its supervisors.
STOP_SECONDS = 8.0


@dataclass
class Running:
    """A job that has printed "ready" from every rank, with the pids of its processes."""

    job: TrainingJob
    home: Path
    temporary: Path
    # Rank -> pid of the rank, and of its child.
    ranks: dict[int, int]
    children: dict[int, int]

    def pids(self, pattern: str) -> list[int]:
        """Return the pids of this job's processes with that pattern in their command line, the oldest first."""
        return [pid for pid, command in sorted(processes_of(self.home).items()) if re.search(pattern, command)]

    def supervisor(self, host: int) -> int:
        """Return the pid of a host's supervisor."""
        mark = f"/algo-{host}/".encode()
        (pid,) = [p for p in self.pids("-m herringbone_entry") if mark in Path(f"/proc/{p}/environ").read_bytes()]
        return pid


@dataclass(frozen=True)
class Fault:
    """One way to break a job, and what must come of it.

    `expect` is the state, or "unknown", and a pattern for the failure's text. With the state "refused" the job must not
    start at all, or fail at its start. `prepare` runs in the fault's own mount namespace, before the job starts, and
    `restore` after its end.
    """

    name: str
    layout: str
    act: Callable[[Running], None]
    expect: tuple[str, str]
    seconds: float = 600.0
    body: str = ""
    prepare: Callable[[Path], None] | None = None
    restore: Callable[[Path], None] | None = None


def processes_of(home: Path) -> dict[int, str]:
    """Return pid and command line of all processes that have the home in their environment."""
    mark, found = os.fsencode(home), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            # A process may end between the listing and the read.
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def send(target: Callable[[Running], int], number: signal.Signals) -> Callable[[Running], None]:
    """Return the action that signals one process."""
    return lambda running: os.kill(await_true(lambda: target(running)), number)


def pause(target: Callable[[Running], int], named: str) -> Callable[[Running], None]:
    """Return the action that stops one process, has it go on, stops it again, and asks the job to stop.

    While the process is stopped, every surface names it by the pattern `named`; afterwards none does.
    """

    def act(running: Running) -> None:
        pid = await_true(lambda: target(running))
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
            os.kill(pid, number)
            expected = partial(check_named, running.job, named.format(pid=pid), expected=number is signal.SIGSTOP)
            await_true(expected)
        begin = time.monotonic()
        running.job.stop(grace=1.0)
        running.job.wait(timeout=STOP_SECONDS)
        assert time.monotonic() - begin < STOP_SECONDS

    return act


def check_named(job: TrainingJob, named: str, *, expected: bool) -> bool:
    """Say whether `ls`, `describe` and the page agree that something of the job stands still, or that nothing does."""
    with contextlib.closing(LiveJob(job.name)) as page:
        page.look()
        texts = [page.data()["why"], job.describe()["Herringbone"].get("Standstill", "")]
    texts.append(place_texts(find_home(), [JobIndex(find_home().index).get(job.name)]).get(job.name, ""))
    return all(bool(re.search(named, text)) is expected and bool(text) is expected for text in texts)


def await_true(condition: Callable[[], int]) -> int:
    """Return the first true value, within the time after which a process that stands still must be named."""
    deadline = time.monotonic() + NAMED_SECONDS
    while True:
        # The process that is looked for may start a second after the ranks.
        with contextlib.suppress(IndexError):
            if value := condition():
                return value
        if time.monotonic() > deadline:
            raise TimeoutError("not named, or named too long")
        time.sleep(0.1)


def rank(number: int) -> Callable[[Running], int]:
    return lambda running: running.ranks[number]


def supervisor(host: int) -> Callable[[Running], int]:
    return lambda running: running.supervisor(host)


def process(pattern: str) -> Callable[[Running], int]:
    return lambda running: running.pids(pattern)[0]


CONTROLLER = process("-m herringbone.controller")
# Open MPI 5 calls itself prterun.
MPIRUN = process(r"(mpirun|prterun) -n ")
# Processes whose end, or standstill, does not end the job.
HELPERS = [
    ("observer", process(r"observer\.main"), r"the observer \(process {pid}\) is stopped"),
    ("search for metrics", process(r"events\.from_log"), r"finds metrics in the log \(process {pid}\) is stopped"),
]


# Name -> what the script does, the state that follows, and a pattern for the failure.
BODIES = {
    "script raises": ("raise ValueError('boom')", "Failed", "ValueError: boom"),
    "script aborts": ("os.abort()", "Failed", "SIGABRT"),
    "script exits with 7": ("os._exit(7)", "Failed", "exit code 7"),
    "script overflows its stack": ("def f(): f()\nf()", "Failed", "RecursionError"),
    "script crashes": ("import ctypes; ctypes.string_at(0)", "Failed", "SIGSEGV"),
    "script runs out of memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (400 << 20,) * 2); x = b'0' * (1 << 30)",
        "Failed",
        "MemoryError",
    ),
    "script runs out of descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)); [os.dup(0) for _ in range(30)]",
        "Failed",
        "Too many open files",
    ),
    "script closes its output": ("os.close(1); os.close(2)", "Completed", ""),
    "script closes all its descriptors": ("os.closerange(0, 100)", "Completed", ""),
    "script ignores SIGTERM and leaves a child": (
        "subprocess.Popen(['sleep', '600'], start_new_session=True)",
        "Completed",
        "",
    ),
    "script is a child of a child": ("os.fork() and os.wait()", "Completed", ""),
    "script removes its folder": ("import shutil; shutil.rmtree(os.getcwd())", "Completed", ""),
    "script kills its supervisor": (
        "time.sleep(1); os.kill(os.getppid(), 9); time.sleep(600)",
        "Failed",
        "algo-1: .*SIGKILL",
    ),
    "script stops itself": ("os.kill(os.getpid(), signal.SIGTERM)", "Failed", "SIGTERM"),
    "log of 10^6 lines": ("sys.stdout.write('step 1 loss 0.5\\n' * 10**6)", "Completed", ""),
    "line of 100 MB": ("sys.stdout.write('x' * 10**8 + '\\n')", "Completed", ""),
    "ANSI and NUL in the log": (
        "print('\\x1b[2J\\x1b]0;t\\x07\\0\\0 \\x9b'); sys.stdout.buffer.write(b'\\xff\\xfe\\n')",
        "Completed",
        "",
    ),
    "carriage returns only": ("sys.stdout.write('\\r'.join(map(str, range(10**5))))", "Completed", ""),
    "no newline at the end": ("sys.stdout.write('last words')", "Completed", ""),
    "model folder is a file": (
        "import shutil; shutil.rmtree(os.environ['SM_MODEL_DIR']); open(os.environ['SM_MODEL_DIR'], 'w')",
        "Completed|Failed",
        "",
    ),
    "model folder has a FIFO": ("os.mkfifo(os.environ['SM_MODEL_DIR'] + '/fifo')", "Completed|Failed", ""),
    "failure file of the script's own": (
        "pathlib.Path(os.environ['SM_OUTPUT_DIR'], 'failure').write_text('mine'); sys.exit(1)",
        "Failed",
        "",
    ),
}


def signal_faults() -> Iterator[Fault]:
    """Yield SIGKILL, SIGTERM and SIGSTOP of every process of a job, in every layout."""
    killed, ended, stopped = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP
    over = ("Stopped", "")
    for layout, (hosts, distribution) in LAYOUTS.items():
        last = hosts * (2 if distribution is MPI else 1) - 1
        for number in sorted({0, last}):
            named = rf"rank {number} on algo-{hosts if number else 1}: .*killed by SIG"
            yield Fault(
                f"{layout}: rank {number} killed", layout, send(rank(number), killed), ("Failed", named + "KILL")
            )
            yield Fault(f"{layout}: rank {number} ended", layout, send(rank(number), ended), ("Failed", named + "TERM"))
            yield Fault(
                f"{layout}: rank {number} stopped",
                layout,
                pause(rank(number), rf"algo-{hosts if number else 1}: rank {number} \(process {{pid}}\) is stopped"),
                over,
            )
        yield Fault(
            f"{layout}: child of rank 0 killed",
            layout,
            lambda running: os.kill(running.children[0], killed),
            ("Completed", ""),
            seconds=3.0,
        )
        yield Fault(
            f"{layout}: controller killed", layout, send(CONTROLLER, killed), ("Failed", "the process that watched")
        )
        yield Fault(f"{layout}: controller ended", layout, send(CONTROLLER, ended), over)
        words = "somebody has stopped its controller, process {pid}"
        yield Fault(f"{layout}: controller stopped", layout, pause(CONTROLLER, words), over)
        for name, target, words in HELPERS:
            yield Fault(f"{layout}: {name} stopped", layout, pause(target, words), over)
            yield Fault(f"{layout}: {name} killed", layout, send(target, killed), ("Completed", ""), seconds=4.0)
        for host in range(1, hosts + 1):
            name, lost = (
                f"{layout}: supervisor {host}",
                rf"algo-{host}: .*(killed by SIGKILL|lost contact with algo-{host})",
            )
            yield Fault(f"{name} killed", layout, send(supervisor(host), killed), ("Failed", lost))
            yield Fault(f"{name} ended", layout, send(supervisor(host), ended), ("Stopped|Failed", ""))
            if hosts == 1:
                words = rf"algo-{host}: its supervisor \(process {{pid}}\) is stopped"
                yield Fault(f"{name} stopped", layout, pause(supervisor(host), words), over)
            else:
                # The other host gives it up after three heartbeats.
                lost = f"lost contact with algo-{host}"
                yield Fault(f"{name} stopped", layout, send(supervisor(host), stopped), ("Failed", lost))
        if distribution is MPI:
            yield Fault(f"{layout}: mpirun killed", layout, send(MPIRUN, killed), ("Failed", "mpirun"))
            yield Fault(f"{layout}: mpirun ended", layout, send(MPIRUN, ended), ("Failed", ""))
            yield Fault(
                f"{layout}: mpirun stopped", layout, pause(MPIRUN, r"algo-1: mpirun \(process {pid}\) is stopped"), over
            )


def remove(path: Callable[[Running], Path]) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        target = path(running)
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return act


def _index(running: Running) -> Path:
    return running.home / "index.sqlite"


def _damage_index(running: Running) -> None:
    with _index(running).open("r+b") as file:
        file.write(b"\0" * 200)


def _lock_index(running: Running) -> None:
    code = "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1])\nc.execute('begin exclusive')\ntime.sleep(14)"
    subprocess.Popen([sys.executable, "-c", code, str(_index(running))], env={"PATH": os.environ["PATH"]})


def _fill_disk(running: Running) -> None:
    _ballast(running.home)
    time.sleep(FULL_SECONDS)
    (running.home / "ballast").unlink()


def _make_room(running: Running) -> None:
    time.sleep(FULL_SECONDS)
    (big,) = running.home.rglob("big")
    big.unlink()


def _ballast(home: Path) -> None:
    """Fill the disk of the home to its last byte."""
    with contextlib.suppress(OSError), (home / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)


def small_disk(home: Path) -> None:
    """Put a disk of 3 MB under the home."""
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(home)], check=True)


def full_disk(home: Path) -> None:
    """Put a disk of 3 MB under the home, and fill it."""
    small_disk(home)
    _ballast(home)


def nothing(_running: Running) -> None:
    """Leave the job alone: its script is the fault."""


def world_faults() -> Iterator[Fault]:
    """Yield faults of disks, files, limits and of the script itself."""
    done = ("Completed", "")
    # The index is where states are kept, so without it the job must go on, and say so at its end.
    yield Fault("index removed", "plain", remove(_index), ("unknown", "no job .* in "), 2.0)
    yield Fault("index damaged", "plain", _damage_index, ("unknown", "it is damaged: move it away"), 2.0)
    yield Fault("index read-only", "plain", lambda running: _index(running).chmod(0o400), done, 2.0)
    yield Fault("folder of the home read-only", "plain", lambda running: running.home.chmod(0o500), done, 2.0)
    yield Fault("index locked for 14 s at the end", "plain", _lock_index, done, seconds=2.0)
    yield Fault(
        "log file removed", "plain", remove(lambda r: r.home / "jobs" / r.job.name / "logs" / "algo-1.log"), done, 2.0
    )
    yield Fault(
        "code removed", "plain", remove(lambda r: r.home / "jobs" / r.job.name / "hosts/algo-1/ml/code"), done, 2.0
    )
    yield Fault("disk full in the middle", "plain", _fill_disk, ("Completed|Failed", ""), 2.0, prepare=small_disk)
    yield Fault(
        "script fills the disk",
        "plain",
        _make_room,
        ("Failed", "No space left"),
        2.0,
        # The line "ready" must reach the log before there is no room for it.
        body="time.sleep(1); open(os.environ['SM_MODEL_DIR'] + '/big', 'wb').write(b'0' * 9_000_000)",
        prepare=small_disk,
    )
    for name, (body, state, words) in BODIES.items():
        yield Fault(name, "plain", nothing, (state, words), seconds=0.2, body=body)


# CI runs these.
SHORT = {
    "plain: controller killed",
    "two hosts: supervisor 2 killed",
    "two hosts: rank 1 killed",
    "mpi: mpirun killed",
    "mpi on two hosts: rank 3 killed",
    "script raises",
    "script kills its supervisor",
    "ANSI and NUL in the log",
    "script closes all its descriptors",
    "script fills the disk",
    "home on a second machine",
}
