"""The coordinator names what was killed first: a rank, mpirun, or a daemon of its."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.entrypoints.supervisor.test_coordinator import Bench

from herringbone_contract.failure_text import parse_failure
from herringbone_entry.processes import exit_code_before_reaping
from herringbone_entry.supervisor.coordinator import SETTLE_SECONDS


@pytest.mark.parametrize(
    ("seconds", "says", "reported"),
    # mpirun saw the first death; it may have seen our SIGTERM first; a rank's SIGTERM from elsewhere, seen in time.
    [(0.0, 137, 137), (SETTLE_SECONDS, 143, 137), (2.0, 143, 137), (SETTLE_SECONDS / 2, 143, 143), (2.0, 5, 5)],
)
def test_an_mpirun_that_is_slow_does_not_blame_our_own_sigterm(seconds: float, says: int, reported: int) -> None:
    # Under load mpirun heard of rank 1's SIGKILL after rank 0 had died of the abort's SIGTERM: the job's code was 143.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.ended(1, None)
    bench.advance(seconds)
    bench.ended(0, None)
    bench.mpirun_ended(says)
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (reported, 1)


@pytest.mark.parametrize(
    ("across", "rank", "end", "reported"),
    [
        # The system showed how the rank ended.
        (True, 1, {"seen": 143}, 143),
        (False, 1, {"seen": 137}, 137),
        # mpirun had collected the rank's exit code before the abort, so its word is about that rank.
        (False, 1, {"reaped": True}, 143),
        (True, 0, {"reaped": True}, 143),
        # A daemon had collected it, and may have told mpirun late: the signal that leaves no other trace.
        (True, 1, {"reaped": True}, 137),
        (False, 1, {}, 137),
    ],
)
def test_a_rank_that_somebody_s_sigterm_ended_is_not_reported_as_killed(across, rank, end, reported) -> None:
    # Under mpirun each SIGTERM from elsewhere was reported as SIGKILL.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.coordinator._register.across = across
    bench.ended(rank, None, **end)
    bench.advance(SETTLE_SECONDS)
    bench.ended(1 - rank, None, seen=143)
    bench.mpirun_ended(143)
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (reported, rank)


@pytest.mark.parametrize("first", [0, 1])
def test_a_segmentation_fault_explains_the_ranks_that_mpirun_killed(first) -> None:
    # MPICH kills the other ranks within the millisecond, and the end of a killed rank may arrive first.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    seen = {0: 137, 1: 139}
    for rank in (first, 1 - first):
        bench.ended(rank, None, seen=seen[rank])
    bench.mpirun_ended(137)
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (139, 1)


def test_the_system_shows_how_a_process_ends_until_its_parent_has_asked() -> None:
    for command, code in (("kill -TERM $$", 143), ("exit 7", 7), ("exit 0", None)):
        shell = subprocess.Popen(["sh", "-c", command])
        # Until it has ended, and without reaping it.
        os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
        assert exit_code_before_reaping(shell.pid) == code
        shell.wait()
        with pytest.raises(ProcessLookupError):
            exit_code_before_reaping(shell.pid)
    assert exit_code_before_reaping(os.getpid()) is None


def silent(bench: Bench) -> None:
    bench.ended(1, None)


def crashed(bench: Bench) -> None:
    # Open MPI's library aborts a rank that misses its daemon.
    bench.ended(1, 134)


@pytest.mark.parametrize("rank", [silent, crashed])
@pytest.mark.parametrize("first", ["rank", "process"])
@pytest.mark.parametrize("killed", ["mpirun", "daemon"])
def test_a_killed_mpirun_or_daemon_is_the_cause_of_the_ends_of_its_ranks(rank, first: str, killed: str) -> None:
    # The job blamed a rank, even one of another host, and was not retried.
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()

    def kill() -> None:
        if killed == "mpirun":
            bench.mpirun_ended(137, killed=True)
        else:
            bench.daemon_ended("algo-2", 137, killed=True)

    for event in (lambda: rank(bench), kill) if first == "rank" else (kill, lambda: rank(bench)):
        event()
        bench.advance(SETTLE_SECONDS / 4)
    bench.ended(0, None)
    if killed == "daemon":
        bench.mpirun_ended(213)
    bench.advance(SETTLE_SECONDS)
    failure = parse_failure(bench.orders[-1]["failure"])
    host, process = ("algo-1", "mpirun") if killed == "mpirun" else ("algo-2", "mpirun's daemon")
    assert (failure.host, failure.rank, failure.exit_code, failure.interrupted_host) == (host, None, 137, host)
    assert failure.message == f"lost a process of {host}: {process} ended before its ranks did"


def test_an_exception_is_the_cause_of_an_mpirun_that_fails_after_it() -> None:
    bench = Bench("algo-1", "algo-2", launcher=True)
    bench.all_ready()
    bench.ended(1, 1, what="ValueError")
    bench.daemon_ended("algo-2", 1, killed=False)
    bench.mpirun_ended(1)
    bench.ended(0, None)
    bench.advance(SETTLE_SECONDS)
    assert bench.verdict == (1, 1)


def test_an_mpirun_killed_during_a_stop_fails_nothing() -> None:
    bench = Bench("algo-1", launcher=True)
    bench.all_ready()
    bench.stop("algo-1")
    bench.mpirun_ended(143, killed=True)
    bench.ended(0, 143)
    assert bench.orders[-1] == {"kind": "finish", "code": 143, "failure": None}
