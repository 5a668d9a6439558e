"""A stop sends SIGTERM to every rank, keeps the grace period, and leaves no process running."""

from __future__ import annotations

import os
import signal
import time

import pytest

HANDLER = """
    import os, pathlib, signal, sys, time
    rank, root = os.environ["RANK"], pathlib.Path(os.environ["ROOT"])

    def save(number, frame):
        (root / f"stopped-{rank}").write_text(str(time.time()))
        time.sleep(float(os.environ.get("SAVE_SECONDS", "0.1")) * (1 + int(rank)))
        (root / f"saved-{rank}").touch()
        sys.exit(int(os.environ.get("CODE", "0")))

    signal.signal(signal.SIGTERM, save)
    (root / f"up-{rank}").touch()
    while True:
        time.sleep(0.05)
"""
MPI2 = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
KINDS = ["plain", "openmpi4", "openmpi5", "mpich"]


def prepared(make_job, mpirun, kind: str, script: str, **environment: str):
    job = make_job(**environment)
    job.write(script, **({} if kind == "plain" else MPI2))
    if kind != "plain":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(kind)
    job.start()
    ranks = 1 if kind == "plain" else 2
    job.seen("up-", ranks)
    return job, ranks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("code", "expected"), [(0, 0), (9, 143)])
def test_p10_every_rank_gets_sigterm_and_may_save(make_job, mpirun, kind: str, code: int, expected: int) -> None:
    # mpirun killed ranks that were still saving as soon as one rank had left with a code other than 0.
    job, ranks = prepared(make_job, mpirun, kind, HANDLER, CODE=str(code), SAVE_SECONDS="0.8")
    stopped = time.time()
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    ended = job.wait()["algo-1"]
    assert ended.code == expected, ended.output
    for rank in range(ranks):
        assert float((job.root / f"stopped-{rank}").read_text()) - stopped < 1.0
        assert (job.root / f"saved-{rank}").exists()
    assert ended.failure is None
    assert b"none of them asks should_stop" in ended.output
    assert job.survivors() == []


def test_a_rank_that_is_paused_may_save(make_job, mpirun) -> None:
    job, _ = prepared(make_job, mpirun, "plain", HANDLER, HERRINGBONE_STOP_GRACE="10")
    (rank,) = (pid for pid in job.survivors() if pid != job.processes["algo-1"].pid)
    os.kill(rank, signal.SIGSTOP)
    stopped = time.time()
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    assert job.wait()["algo-1"].code == 0
    assert time.time() - stopped < 5.0
    assert (job.root / "saved-0").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_p10_sigkill_follows_the_grace_period(make_job, mpirun, kind: str) -> None:
    job, _ = prepared(make_job, mpirun, kind, HANDLER, SAVE_SECONDS="60", HERRINGBONE_STOP_GRACE="0.5")
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert job.wait()["algo-1"].code == 143
    assert time.monotonic() - began < 5.0
    assert job.survivors() == []


def test_p10_a_second_signal_kills_at_once(make_job, mpirun) -> None:
    job, _ = prepared(make_job, mpirun, "plain", HANDLER, SAVE_SECONDS="60")
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    job.seen("stopped-")
    job.processes["algo-1"].send_signal(signal.SIGINT)
    assert job.wait(timeout=5.0)["algo-1"].code == 143


@pytest.mark.parametrize("kind", ["openmpi5", "mpich"])
def test_p10_a_rank_without_a_handler_does_not_end_those_that_save(make_job, mpirun, kind: str) -> None:
    # Rank 1 has no handler. SIGTERM would end it, and mpirun would then end rank 0.
    script = HANDLER.replace("    signal.signal(", "    if rank == '0': signal.signal(")
    job, _ = prepared(make_job, mpirun, kind, script, SAVE_SECONDS="1.0")
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    assert job.wait()["algo-1"].code == 143
    assert (job.root / "saved-0").exists()


def test_p10_a_rank_that_learns_to_save_after_the_stop_saves(make_job, mpirun) -> None:
    # Rank 1 had no handler at the stop, so it was deferred. By the release it had one, and was skipped again.
    script = HANDLER.replace(
        "    signal.signal(",
        """
    if rank == "1":
        (root / "up-1").touch()
        while not (root / "stopped-0").exists():
            time.sleep(0.01)
    signal.signal(""",
    )
    job, _ = prepared(make_job, mpirun, "openmpi5", script, SAVE_SECONDS="0.8")
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    assert job.wait(timeout=10.0)["algo-1"].code == 0
    assert (job.root / "saved-1").exists()


@pytest.mark.parametrize("stopped_host", ["algo-1", "algo-2"])
def test_p10_a_stop_of_one_host_stops_all_hosts(make_job, stopped_host: str) -> None:
    job = make_job(hosts=2)
    job.write(HANDLER, sagemaker_torch_distributed_enabled=True)
    job.start()
    job.seen("up-", 2)
    job.processes[stopped_host].send_signal(signal.SIGTERM)
    ended = job.wait(timeout=10.0)
    assert [result.code for result in ended.values()] == [0, 0]
    assert len(list(job.root.glob("saved-*"))) == 2


def test_p10_a_stop_before_all_hosts_have_joined(make_job) -> None:
    job = make_job(hosts=2)
    job.write("print('never')")
    job.start("algo-1")
    time.sleep(0.3)
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    ended = job.wait(timeout=5.0)["algo-1"]
    assert ended.code == 143
    assert ended.failure is None


def test_the_end_of_the_lifeline_stops_the_job(make_job) -> None:
    job = make_job()
    job.write(HANDLER)
    reader, writer = os.pipe()
    job.environment["HERRINGBONE_LIFELINE_FD"] = str(reader)
    job.descriptors.append(reader)
    job.start()
    os.close(reader)
    job.seen("up-")
    os.close(writer)
    assert job.wait(timeout=10.0)["algo-1"].code == 0
    assert (job.root / "saved-0").exists()


IGNORANT = ("/bin/sh", "-c", 'trap "" HUP INT QUIT TERM PIPE; exec "$0" "$@"')


@pytest.mark.parametrize("kind", ["plain", "openmpi5"])
def test_a_rank_ignores_no_signal_that_its_starter_did(make_job, mpirun, kind: str) -> None:
    # `nohup` and a shell's `&` leave SIGHUP, SIGINT and SIGQUIT ignored, from parent to child to grandchild.
    job = make_job(HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.command = (*IGNORANT, *job.command)
    script = """
        import signal
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            print(number.name, signal.getsignal(number) is signal.SIG_IGN)
    """
    job.write(script, **({} if kind == "plain" else {"sagemaker_mpi_enabled": True}))
    names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
    assert job.run()["algo-1"].lines == [f"[algo-1:0] {name} False" for name in names]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_p10_a_job_started_with_signals_ignored_can_be_stopped(make_job, number: signal.Signals) -> None:
    job = make_job()
    job.command = (*IGNORANT, *job.command)
    job.write(HANDLER)
    job.start()
    job.seen("up-")
    job.processes["algo-1"].send_signal(number)
    assert job.wait(timeout=10.0)["algo-1"].code == 0
    assert (job.root / "saved-0").exists()


def test_a_rank_that_never_reads_its_start_message_can_be_stopped(make_job) -> None:
    # A start message larger than the socket's buffer was sent in one blocking call, and a hanging Python never reads.
    job = make_job()
    job.write("print('never')", **{f"name{number}": "x" * 2_400 for number in range(45)})
    stuck = "import os, sys, time\nif sys.orig_argv[1] == '-c': open(os.environ['ROOT'] + '/up-0', 'w'); time.sleep(60)"
    (job.root / "sitecustomize.py").write_text(stuck)
    job.environment["PYTHONPATH"] = str(job.root)
    job.start()
    job.seen("up-")
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    assert job.wait(timeout=5.0)["algo-1"].code == 143
