"""A lost rank, container or network ends every host soon, with a reason."""

from __future__ import annotations

import time

import pytest
from tests.entrypoints.deaths import CODES, SCRIPT
from tests.pairwise import pairwise

pytestmark = pytest.mark.docker

BY_NAME = {"torch": {"sagemaker_torch_distributed_enabled": True}, "mpi": {"sagemaker_mpi_enabled": True}}
LAUNCHERS = pytest.mark.parametrize("launcher", BY_NAME.values(), ids=BY_NAME)
LOST = pytest.mark.parametrize(("lost", "other"), [("algo-1", "algo-2"), ("algo-2", "algo-1")], ids=["first", "last"])
SLEEP = "import os, time; open(os.environ['ROOT'] + '/up-' + os.environ['RANK'], 'w'); time.sleep(120)"


@pytest.mark.parametrize(("launcher", "how", "rank"), pairwise(BY_NAME, CODES, (0, 1)))
def test_p5_any_death_ends_every_host(make_job, launcher: str, how: str, rank: int) -> None:
    job = make_job(hosts=2, HOW=how, BAD_RANK=str(rank))
    job.write(SCRIPT, **BY_NAME[launcher])
    ended = job.run()
    over = time.time()
    words = next(line for result in ended.values() for line in result.rank_lines if "last words" in line)
    assert over - float(words.split()[-1]) < 5.0
    for result in ended.values():
        assert result.code == CODES[how], result.output
        assert (result.failure.host, result.failure.rank) == (f"algo-{rank + 1}", rank)
        assert not result.success


@LAUNCHERS
@LOST
def test_p6_p7_a_killed_container_ends_the_other(make_job, launcher, lost: str, other: str) -> None:
    job = make_job(hosts=2)
    job.write(SLEEP, **launcher)
    job.start()
    job.seen("up-", 2)
    job.engine.kill(job.containers[lost])
    began = time.monotonic()
    ended = job.wait(other, timeout=20.0)[other]
    assert time.monotonic() - began < 5.0
    assert (ended.code, ended.success) == (1, False)
    assert f"lost contact with {lost}" in ended.failure_text


@LAUNCHERS
@LOST
def test_p8_a_paused_container_is_noticed_and_ends_when_it_wakes(make_job, launcher, lost: str, other: str) -> None:
    job = make_job(hosts=2, HERRINGBONE_HEARTBEAT="0.5")
    job.write(SLEEP, **launcher)
    job.start()
    job.seen("up-", 2)
    job.engine.pause(job.containers[lost])
    began = time.monotonic()
    ended = job.wait(other, timeout=30.0)[other]
    assert time.monotonic() - began < 10.0
    assert (ended.code, ended.success) == (1, False)
    assert f"lost contact with {lost}" in ended.failure_text
    job.engine.unpause(job.containers[lost])
    woken = job.wait(lost, timeout=20.0)[lost]
    assert (woken.code, woken.success) == (1, False)


@LAUNCHERS
@LOST
def test_p8_a_cut_network_ends_both_sides(make_job, launcher, lost: str, other: str) -> None:
    job = make_job(hosts=2, HERRINGBONE_HEARTBEAT="0.5")
    job.write(SLEEP, **launcher)
    job.start()
    job.seen("up-", 2)
    job.engine.disconnect_container_from_network(job.containers[lost], job.network)
    began = time.monotonic()
    ended = job.wait(timeout=30.0)
    assert time.monotonic() - began < 15.0
    for host, result in ended.items():
        assert (result.code, result.success) == (1, False), result.output
        (gone,) = set(job.hosts) - {host}
        assert f"lost contact with {gone}" in result.failure_text


@LAUNCHERS
def test_a_rank_that_runs_out_of_memory_is_named(make_job, launcher) -> None:
    job = make_job(hosts=2)
    job.write(
        """
        import os, time
        if os.environ["RANK"] == "1":
            print("growing", flush=True)
            held = [bytearray(os.urandom(1 << 20)) * 8 for _ in range(1000)]
        time.sleep(120)
        """,
        **launcher,
    )
    ended = job.run(mem_limit="256m", memswap_limit="256m")
    for result in ended.values():
        assert result.code == 137, result.output
        assert (result.failure.host, result.failure.rank) == ("algo-2", 1)
        assert "of the 256 MiB that it may use; lower the batch size" in result.failure.message


@LAUNCHERS
def test_the_end_of_the_controller_ends_every_host(make_job, launcher) -> None:
    job = make_job(hosts=2)
    job.write(SLEEP, **launcher)
    job.start()
    job.seen("up-", 2)
    job.hang_up("algo-2")
    ended = job.wait(timeout=20.0)
    assert [result.code for result in ended.values()] == [143, 143]
