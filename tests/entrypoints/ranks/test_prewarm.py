"""A prewarmed rank starts next to its supervisor, and differs from a fresh rank in nothing but the time."""

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
from herringbone_entry.ranks.prewarm import PrewarmedRank

WITHOUT_PREWARMED = (
    sys.executable,
    "-c",
    "import os; from herringbone_entry.job import run; os._exit(run(os.environ))",
)
# Everything by which a program could notice that it was started in another way.
SELF_PORTRAIT = """
    import json, os, signal, sys
    for name in [name for name in os.environ if name == "MASTER_PORT" or name.startswith("KUBEFLOW_TRAINER_")]:
        os.environ.pop(name)  # another one in each job
    print(json.dumps({
        "environ": dict(os.environ), "path": sys.path, "argv": sys.argv, "flags": str(sys.flags), "cwd": os.getcwd(),
        "leads": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getsid(os.getppid()),
        "signals": [getattr(handler, "__qualname__", str(handler))
                    for handler in map(signal.getsignal, sorted(signal.valid_signals()))],
        "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}").rstrip("0123456789[]:")
                              for fd in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{fd}")),
        "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering],
    }, sort_keys=True))
"""


@contextmanager
def private_line(job, environment: dict[str, str] | None) -> Iterator[None]:
    """Give the job its controller's line, or none that ever comes. The controller lives until the block ends."""
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


def test_a_prewarmed_rank_equals_a_fresh_one(make_job) -> None:
    job = make_job(PYTHONPATH=os.environ.get("PYTHONPATH", ""), LC_ALL="C.UTF-8")
    job.write(SELF_PORTRAIT, epochs=3)
    prewarmed_portrait = json.loads(job.run()["algo-1"].lines[0].partition(" ")[2])
    job.command = WITHOUT_PREWARMED
    assert prewarmed_portrait == json.loads(job.run()["algo-1"].lines[0].partition(" ")[2])


@pytest.mark.parametrize(
    ("environment", "prewarmed_serves"),
    [({"COLOUR": "green"}, True), ({"COLOUR": "green", "PYTHONHASHSEED": "7"}, False), ({"LD_BIND_NOW": "1"}, False)],
)
def test_a_rank_has_the_private_environment_and_is_prewarmed_only_if_that_comes_in_time(
    make_job, environment: dict[str, str], prewarmed_serves: bool
) -> None:
    job = make_job()
    names = [*environment, "HERRINGBONE_PRIVATE_FD"]
    # The kernel shows the environment at the start of a process, Python the present one.
    job.write(
        f"""
        import os
        print(*(os.environ.get(name) for name in {names!r}))
        print({next(iter(environment))!r} not in open("/proc/self/environ").read())
        """
    )
    with private_line(job, environment):
        ended = job.run()["algo-1"]
    assert ended.rank_lines == [f"[algo-1:0] {' '.join(environment.values())} None", f"[algo-1:0] {prewarmed_serves}"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_prewarmed_rank_ends_with_a_supervisor_that_never_needed_it(
    make_job, number: signal.Signals, code: int
) -> None:
    job = make_job()
    job.write("print('never')")
    with private_line(job, None):
        job.start()
        while len(job.survivors()) < 2:  # the supervisor waits for its line, the prewarmed rank for its start message
            time.sleep(0.01)
        job.processes["algo-1"].send_signal(number)
        ended = job.wait()["algo-1"]
    assert (ended.code, ended.output) == (code, b"")
    assert job.survivors(patience=5.0) == []


def test_a_job_that_cannot_start_leaves_no_prewarmed_rank(make_job) -> None:
    job = make_job()
    job.write("print('never')", program="train.py", sagemaker_program="missing.py")
    ended = job.run()["algo-1"]
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert "missing.py" in ended.lines[0]
    assert job.survivors() == []


@pytest.mark.parametrize("reaped", [True, False])
def test_a_prewarmed_rank_that_died_does_not_serve(reaped: bool) -> None:
    environment = dict(os.environ)
    prewarmed = PrewarmedRank(sys.executable, environment)
    assert prewarmed.serves(sys.executable, {**environment, "MORE": "1"})
    assert prewarmed.lacks({**environment, "MORE": "1"}) == {"MORE": "1"}
    assert not prewarmed.serves("/usr/bin/another", environment)
    assert not prewarmed.serves(sys.executable, {**environment, "PYTHONOPTIMIZE": "2"})
    os.kill(prewarmed.pid, signal.SIGKILL)
    os.waitid(os.P_PID, prewarmed.pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    assert not prewarmed.serves(sys.executable, environment)
    prewarmed.discard()


def test_a_missing_python_leaves_no_descriptor_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        PrewarmedRank("/no/python", dict(os.environ))
    assert os.listdir("/proc/self/fd") == before


def test_no_rank_is_prewarmed_when_it_would_not_serve(tmp_path: Path) -> None:
    assert prewarm.start({**os.environ, "PYTHONPATH": "relative"}) == []
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"sagemaker_mpi_enabled": "true"}')
    assert prewarm.start({**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)}) == []
