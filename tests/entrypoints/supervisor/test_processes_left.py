"""P11: no process of a job outlives its supervisor, and none that a rank left running delays the end for long."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until


@pytest.mark.parametrize("how", ["child", "daemon"])
def test_p11_a_grandchild_holding_stdout_delays_the_end_by_two_seconds_at_most(make_job, how: str) -> None:
    job = make_job()
    setsid = "setsid " if how == "daemon" else ""
    job.write(f"import os, time; os.system('{setsid}sleep 60 &'); print(time.time())")
    ended = job.run()["algo-1"]
    assert ended.code == 0
    assert time.time() - float(ended.lines[0].split()[-1]) < 2.5
    assert job.survivors() == []


def test_p11_a_process_left_running_before_any_rank_starts_ends_with_the_job(make_job, tmp_path: Path) -> None:
    # We adopted orphans only after the ranks were started: an orphan of an earlier moment was never found.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\nsetsid sleep 60 >/dev/null 2>&1 &\ntouch {tmp_path}/asked\n")
    mpirun.chmod(0o755)
    job = make_job(HERRINGBONE_MPIRUN=str(mpirun))
    job.write("", sagemaker_mpi_enabled=True)
    assert job.run()["algo-1"].code == 1
    assert (tmp_path / "asked").exists()
    assert job.survivors() == []


def test_p11_the_last_lines_of_a_grandchild_are_kept(make_job) -> None:
    job = make_job()
    job.write("import os; os.system('(sleep 0.3; echo last) &'); print('first')")
    assert job.run()["algo-1"].lines == ["[algo-1:0] first", "[algo-1:0] last"]


def test_p11_a_grandchild_that_writes_without_end_does_not_hold_the_supervisor(make_job) -> None:
    # After the rank's failure the supervisor read the pipe until it was empty, and it never was.
    job = make_job()
    job.write("import subprocess; subprocess.Popen(['yes', 'still here']); raise ValueError('boom')")
    ended = job.run(timeout=10.0)["algo-1"]
    assert ended.code == 1
    assert ended.failure.message == "boom"
    assert job.survivors() == []


def test_p11_a_forked_child_does_not_make_its_dead_rank_look_alive(make_job, mpirun) -> None:
    # The child held the rank's link open, so the supervisor noticed the rank's death only at the child's end.
    job = make_job(HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write(
        """
        import os, signal, time
        if os.fork() == 0:
            time.sleep(60)
        print(time.time())
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        sagemaker_mpi_enabled=True,
    )
    ended = job.run()["algo-1"]
    assert time.time() - float(ended.lines[0].split()[-1]) < 4.0
    assert ended.code == 137
    assert job.survivors() == []


@pytest.mark.parametrize("launcher", ["plain", "openmpi5", "mpich"])
def test_p11_ranks_die_with_a_killed_supervisor(make_job, mpirun, launcher: str) -> None:
    job = make_job()
    mpi = {} if launcher == "plain" else {"sagemaker_mpi_enabled": True}
    if mpi:
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
    job.write("import os, time; open(os.environ['ROOT'] + '/up-', 'w'); time.sleep(60)", **mpi)
    job.start()
    job.seen("up-")
    job.processes["algo-1"].send_signal(signal.SIGKILL)
    job.wait()
    wait_until(lambda: not job.survivors(), 5.0)
    assert job.survivors() == []
