"""Every rank names a lost process within seconds, and waits for a rank that only computes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from tests.parallel.reduce.conftest import KINDS
from tests.waiting import wait_until

NOTICED_SECONDS = 5.0


@pytest.mark.parametrize(
    ("hosts", "helpers", "victim", "signal_number", "named", "kind"),
    [
        ("abc", 3, 1, signal.SIGKILL, "rank 1 on b is gone", KINDS[0]),
        ("abc", 3, 1, signal.SIGKILL, "rank 1 on b is gone", KINDS[-1]),
        ("aab", 0, 0, signal.SIGKILL, "rank 0 on a is gone", KINDS[0]),
        ("ab", 2, -1, signal.SIGKILL, "the server on helper-0 is gone", KINDS[-1]),
        ("abc", 3, 2, signal.SIGSTOP, "rank 2 on c stopped answering", KINDS[0]),
        ("aab", 1, -1, signal.SIGSTOP, "the server on helper-0 stopped answering", "python"),
    ],
    ids=["killed", "killed, mixed", "killed, of one host", "server killed", "stopped", "server stopped"],
)
def test_a_lost_process_is_named_on_every_rank(job, hosts, helpers, victim, signal_number, named, kind):
    running = job("rounds", hosts, helpers, kind)
    running.wait_until_running()
    process = running.servers[0] if victim < 0 else running.ranks[victim]
    began = time.time()
    process.send_signal(signal_number)
    for rank in range(len(hosts)):
        if rank != victim:
            report = running.expect(rank, "failed")
            assert named in report["message"]
            assert report["time"] - began < NOTICED_SECONDS
            assert running.expect(rank, "refused")["message"] == report["message"] == report["again"]


@pytest.fixture
def two_hosts() -> Iterator[list[list[str]]]:
    """Yield the command prefixes of two network namespaces, 10.78.0.1 and 10.78.0.2, with a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and `ip` (iproute2)")
    names = [f"hbtest{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        cable = ["type", "veth", "peer", "name", "eth0", "netns", names[1]]
        subprocess.run(["ip", "-n", names[0], "link", "add", "eth0", *cable], check=True)
        for number, name in enumerate(names, 1):
            subprocess.run(["ip", "-n", name, "addr", "add", f"10.78.0.{number}/24", "dev", "eth0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "up"], check=True)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def test_a_cut_cable_is_noticed_at_both_ends(job, two_hosts):
    running = job("rounds", "ab", address="10.78.0.1", prefixes=two_hosts)
    running.wait_until_running()
    began = time.time()
    subprocess.run([*two_hosts[1], "ip", "link", "set", "eth0", "down"], check=True)
    for rank, other in enumerate(["rank 1 on b", "rank 0 on a"]):
        report = running.expect(rank, "failed")
        assert f"{other} stopped answering" in report["message"]
        assert report["time"] - began < NOTICED_SECONDS


def test_a_rank_that_computes_is_waited_for(job):
    running = job("busy", "ab", 1, KINDS[-1])
    for rank in range(2):
        running.expect(rank, "joined")
        running.expect(rank, "done")
    for process in running.ranks:
        assert process.wait(10) == 0
    running.servers[0].terminate()
    stats = json.loads(running.servers[0].stdout.readline())
    assert running.servers[0].wait(10) == 0
    assert (stats["failures"], stats["refused"]) == ([], 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_too_late_is_named(world, kind):
    ranks = world("abc", 3, kind, late=0.5)

    def work(engine):
        if engine.rank == 1:
            engine.all_reduce(np.ones(100, np.float32)).wait(10)
        with pytest.raises(ParallelError, match="rank 0 on a, rank 2 on c did not submit") as caught:
            engine.all_reduce(np.ones(10_000, np.float32)).wait(10) if engine.rank == 1 else wait_for_failure(engine)
        return str(caught.value)

    def first(engine):
        if engine.rank != 1:
            engine.all_reduce(np.ones(100, np.float32)).wait(10)
        return work(engine)

    assert len(set(ranks.run(first))) == 1


def wait_for_failure(engine) -> None:
    wait_until(lambda: engine.failure is not None, 10)
    engine.all_reduce(np.ones(1, np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hosts", "helpers"), [("abc", 3), ("abc", 0), ("aaa", 0)])
def test_ranks_that_submit_other_buffers_are_named(world, kind, hosts, helpers):
    def work(engine):
        with pytest.raises(ParallelError, match=r"ranks do not sum the same buffers: rank 0 .* rank 2 ") as caught:
            engine.all_reduce(np.ones(3_000 + engine.rank // 2, np.float32)).wait(10)
        return str(caught.value)

    assert len(set(world(hosts, helpers, kind).run(work))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_leaves_early_is_named(world, kind):
    ranks = world("ab", 0, kind)

    def work(engine):
        engine.all_reduce(np.ones(10, np.float32)).wait(10)
        if engine.rank == 0:
            engine.close()
            return
        with pytest.raises(ParallelError, match="rank 0 on a left after 1 buffers"):
            engine.all_reduce(np.ones(10, np.float32)).wait(10)

    ranks.run(work)


def test_a_rank_that_raises_does_not_leave_in_order(world):
    """Regression: the others reported the early leave before the failure was known, and were blamed for it."""
    ranks = world("ab")
    with pytest.raises(ZeroDivisionError), ranks.engines[0]:
        raise ZeroDivisionError
    ranks.run(lambda engine: engine.all_reduce(np.ones(10, np.float32)).wait(10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_closes_at_once_still_takes_part(world, kind):
    """Regression: the rank left with its last chunks unsent, and the others waited for them forever."""
    ranks = world("abc", 1, kind)

    def work(engine):
        data = np.ones(300_000, np.float32)
        handle = engine.all_reduce(data)
        if engine.rank == 1:
            engine.close()
        handle.wait(10)
        assert (data == 3).all()

    ranks.run(work)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_ended_is_named(world, kind):
    ranks = world("ab", 2, kind)
    ranks.run(lambda engine: engine.all_reduce(np.ones(10, np.float32)).wait(10))
    ranks.servers[1].close()
    for engine in ranks.engines:
        with pytest.raises(ParallelError, match=r"the server on helper-1 was ended while rank . on . still needs it"):
            wait_for_failure(engine)
