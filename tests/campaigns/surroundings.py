"""Faults of what surrounds a job: limits of processes, a second machine with the same home, a restarted engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fault_kinds import CONTAINER, STOP_SECONDS, Fault, Running, await_true, nothing

from herringbone import Estimator
from herringbone.records.home import find_home
from herringbone.records.index import JobIndex
from herringbone.slots.places import place_texts
from herringbone.system.processes import pid_of

# The engine's folder is next to the home: sockets need a short path.
_ENGINE_SECONDS = 60.0
IMAGE = "herringbone-tests/campaign:1"
# The CPU shares of the campaign's machine; each host of a job takes one.
SHARES = 8


def limit_processes(count: int) -> Callable[[Path], None]:
    """Return the preparation that lets the job's processes be `count` more than there are now; a thread counts as one.

    A limit of the user (RLIMIT_NPROC) does not bind root, so this is a control group's.
    """

    def prepare(home: Path) -> None:
        group = pids_group(home)
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        _allow(group, count)

    return prepare


def pids_group(home: Path) -> Path:
    """Return the path of the fault's own control group, in version 1 or 2 of Linux's."""
    top = Path("/sys/fs/cgroup")
    return (top / "pids" if (top / "pids").is_dir() else top) / f"hbf-{home.parent.name}"


def _allow(group: Path, count: int) -> None:
    (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + count))


def _no_more_processes(running: Running) -> None:
    _allow(pids_group(running.home), 0)


def _no_more_processes_and_kill(running: Running) -> None:
    _no_more_processes(running)
    os.kill(running.ranks[0], signal.SIGKILL)


_LOOK_FROM_ELSEWHERE = """
import sys
from herringbone import TrainingJob
from herringbone.cli.__main__ import main
from herringbone_contract.errors import LaunchError
assert main(["ls"]) == 0
job = TrainingJob.attach(sys.argv[1])
assert job.status == "InProgress", job.status
for ask in (job.stop, lambda: job._backend.kill(job.name)):
    try:
        ask()
    except LaunchError as error:
        assert "whose processes cannot be seen from here" in str(error), error
    else:
        raise AssertionError("a job whose processes cannot be seen was signalled")
"""


def _look_from_a_second_machine(running: Running) -> None:
    """List and stop the job from another PID namespace with the same home, as from a second machine."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", _LOOK_FROM_ELSEWHERE]
    result = subprocess.run([*command, running.job.name], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1])


def process_limits() -> Iterator[Fault]:
    """Yield limits of the number of processes: at the start, in the script, and at the end."""
    for count in range(4):
        yield Fault(
            f"{count} processes left at the start",
            "plain",
            nothing,
            ("refused", "Resource temporarily unavailable"),
            seconds=0.2,
            prepare=limit_processes(count),
        )
    yield Fault(
        "script starts more processes than it may",
        "plain",
        nothing,
        ("Failed", "Resource temporarily unavailable"),
        body="children = [subprocess.Popen(['sleep', '600']) for _ in range(60)]",
        prepare=limit_processes(40),
    )
    done = ("Completed", "")
    yield Fault("no process left at the end", "plain", _no_more_processes, done, 2.0, prepare=limit_processes(40))
    yield Fault(
        "rank killed with no process left", "plain", _no_more_processes_and_kill,
        ("Failed", "rank 0 on algo-1: .*killed by SIGKILL"), prepare=limit_processes(40),
    )  # fmt: skip


def _stop_a_waiter(running: Running) -> None:
    """Stop the process of the first job in line: the job, and the one behind it, are told which process it is."""
    options = {"instance_type": "local_process", "environment": {"SECONDS_TO_RUN": "0.2"}}
    script, index = str(running.temporary / "train.py"), JobIndex(running.home / "index.sqlite")
    first = Estimator(entry_point=script, instance_count=SHARES, **options).fit(
        wait=False, queue=True, job_name="first"
    )
    second = Estimator(entry_point=script, **options).fit(wait=False, queue=True, job_name="second")
    waiter = pid_of(str(index.get("first").client))

    def agree(*, expected: bool) -> bool:
        texts = place_texts(find_home(), [index.get("first"), index.get("second")])
        named = "somebody has stopped the process that holds its place"
        return all((named in text) is expected for text in texts.values())

    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
        os.kill(waiter, number)
        await_true(partial(agree, expected=number is signal.SIGSTOP))
    first.stop()
    ends = first.wait(timeout=STOP_SECONDS).status, second.wait(timeout=60).status
    if ends != ("Stopped", "Completed"):
        raise RuntimeError(f"the jobs in line are {ends}")


def surrounding_faults() -> Iterator[Fault]:
    yield Fault("home on a second machine", "plain", _look_from_a_second_machine, ("Completed", ""), seconds=6.0)
    yield Fault("waiter of the first in line stopped", "plain", _stop_a_waiter, ("Completed", ""), seconds=6.0)
    yield from process_limits()
    if shutil.which("dockerd"):
        gone = ("Failed", "the container engine went away while the job ran")
        yield Fault(
            "engine restarted",
            CONTAINER,
            _restart_engine,
            gone,
            prepare=start_engine,
            restore=stop_engine,
        )


def _engine_folder(home: Path) -> Path:
    return home.parent / "engine"


def start_engine(home: Path) -> None:
    """Start an engine of the fault's own, with an image of this Python, and let jobs use it."""
    import docker

    folder = _engine_folder(home)
    folder.mkdir(exist_ok=True)
    # In a network of its own: an engine without a bridge removes docker0, which another engine of this machine uses.
    command = ["unshare", "--net", "dockerd", "--host", f"unix://{folder}/socket", "--data-root", f"{folder}/data"]
    command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", "--bridge", "none", "--iptables=false"]
    command += ["--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    os.environ["DOCKER_HOST"] = f"unix://{folder}/socket"
    with (folder / "log").open("ab") as log:
        # Without the home in its environment, by which `processes_of` would take it for a process of the job.
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
            start_new_session=True,
        )
    deadline = time.monotonic() + _ENGINE_SECONDS
    while subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError((folder / "log").read_text()[-1_000:])
        time.sleep(0.1)
    with docker.APIClient(base_url=os.environ["DOCKER_HOST"], version="auto") as client:
        if not client.images(IMAGE):
            sys.path.insert(0, str(Path(__file__).parents[2]))
            from tests.ssh.small_image import make_small_image

            make_small_image(client, IMAGE)


def _end_engine(home: Path) -> None:
    """End the fault's own engine, by the pid that it has written."""
    pid = int((_engine_folder(home) / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _ENGINE_SECONDS
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def stop_engine(home: Path) -> None:
    """End the engine, and unmount what it has mounted, so that its folder can be removed."""
    with contextlib.suppress(OSError):
        _end_engine(home)
    folder = _engine_folder(home)
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", point], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _restart_engine(running: Running) -> None:
    """End the engine, start it again, and check that nothing of the job stays in it."""
    import docker

    _end_engine(running.home)
    start_engine(running.home)
    running.job.wait(timeout=_ENGINE_SECONDS)
    subprocess.run([sys.executable, "-m", "herringbone.cli", "clean"], capture_output=True, check=False)
    with docker.APIClient(base_url=os.environ["DOCKER_HOST"], version="auto") as client:
        rest = [container["Names"] for container in client.containers(all=True)]
    if rest:
        raise RuntimeError(f"left containers {rest}")
