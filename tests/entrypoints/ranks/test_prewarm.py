"""The first rank's Python comes up beside its supervisor: nothing shows of it but the time."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from herringbone_entry.ranks import prewarm
from herringbone_entry.ranks.prewarm import Spare

WITHOUT_SPARE = (sys.executable, "-c", "import os; from herringbone_entry.job import run; os._exit(run(os.environ))")
# All by which a program could tell that it was started in another way.
SELF_PORTRAIT = """
    import json, os, signal, sys
    os.environ.pop("MASTER_PORT")  # another one in each job
    print(json.dumps({
        "environ": dict(os.environ), "path": sys.path, "argv": sys.argv, "flags": str(sys.flags), "cwd": os.getcwd(),
        "leads": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getsid(os.getppid()),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{fd}")),
        "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering],
    }, sort_keys=True))
"""


@contextmanager
def private_line(job, environment: dict[str, str] | None) -> Iterator[None]:
    """Give the job its controller's line, or one that never comes. The controller lives until the block ends."""
    reader, writer = os.pipe()
    if environment is not None:
        os.write(writer, json.dumps({"environment": environment}).encode() + b"\n")
    job.descriptors.append(reader)
    job.environment["HERRINGBONE_PRIVATE_FD"] = str(reader)
    try:
        yield
    finally:
        os.close(reader)
        os.close(writer)


def test_a_rank_is_the_same_in_a_spare(make_job) -> None:
    job = make_job(PYTHONPATH=os.environ.get("PYTHONPATH", ""), LC_ALL="C.UTF-8")
    job.write(SELF_PORTRAIT, epochs=3)
    drawn = json.loads(job.run()["algo-1"].lines[0].partition(" ")[2])
    job.command = WITHOUT_SPARE
    assert drawn == json.loads(job.run()["algo-1"].lines[0].partition(" ")[2])


@pytest.mark.parametrize(
    ("environment", "taken"),
    [({"COLOUR": "green"}, True), ({"COLOUR": "green", "PYTHONHASHSEED": "7"}, False), ({"LD_BIND_NOW": "1"}, False)],
)
def test_what_comes_in_private_is_the_ranks_too(make_job, environment: dict[str, str], taken: bool) -> None:
    job = make_job()
    names = [*environment, "HERRINGBONE_PRIVATE_FD"]
    # The kernel shows what a process was started with, Python what it has now.
    job.write(
        f"""
        import os
        print(*(os.environ.get(name) for name in {names!r}))
        print({next(iter(environment))!r} not in open("/proc/self/environ").read())
        """
    )
    with private_line(job, environment):
        ended = job.run()["algo-1"]
    assert ended.lines == [f"[algo-1:0] {' '.join(environment.values())} None", f"[algo-1:0] {taken}"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_spare_goes_with_a_supervisor_that_never_needed_it(make_job, number: signal.Signals, code: int) -> None:
    job = make_job()
    job.write("print('never')")
    with private_line(job, None):
        job.start()
        while len(job.survivors()) < 2:  # the supervisor waits for its line, the spare for its orders
            time.sleep(0.01)
        job.processes["algo-1"].send_signal(number)
        ended = job.wait()["algo-1"]
    assert (ended.code, ended.output) == (code, b"")
    assert job.survivors(patience=5.0) == []


def test_a_job_that_cannot_start_leaves_no_spare(make_job) -> None:
    job = make_job()
    job.write("print('never')", program="train.py", sagemaker_program="missing.py")
    ended = job.run()["algo-1"]
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert "missing.py" in ended.lines[0]
    assert job.survivors() == []


@pytest.mark.parametrize("reaped", [True, False])
def test_a_spare_that_died_serves_nobody(reaped: bool) -> None:
    environment = dict(os.environ)
    one = Spare(sys.executable, environment)
    assert one.serves(sys.executable, {**environment, "MORE": "1"})
    assert one.lacks({**environment, "MORE": "1"}) == {"MORE": "1"}
    assert not one.serves("/usr/bin/another", environment)
    assert not one.serves(sys.executable, {**environment, "PYTHONOPTIMIZE": "2"})
    os.kill(one.pid, signal.SIGKILL)
    os.waitid(os.P_PID, one.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    assert not one.serves(sys.executable, environment)
    one.discard()


def test_a_python_that_is_not_there_leaves_nothing_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        Spare("/no/python", dict(os.environ))
    assert os.listdir("/proc/self/fd") == before


def test_none_is_started_where_none_is_wanted(tmp_path: Path) -> None:
    assert prewarm.start({**os.environ, "PYTHONPATH": "relative"}) is None
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"sagemaker_mpi_enabled": "true"}')
    assert prewarm.start({**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)}) is None
