"""The bytes on the network equal the theory, and a server's memory does not grow with the buffers."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.reduce_servers import ReduceServer
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.reduce import build
from herringbone_parallel.reduce.collectives import barrier
from tests.parallel.reduce.conftest import KINDS, start

COUNT = 500_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hosts", "helpers"), [("abcd", 4), ("abcd", 2), ("abc", 0), ("aabb", 2)])
def test_each_host_sends_as_many_bytes_as_predicted(world, kind, hosts, helpers):
    ranks = world(hosts, helpers, kind)

    def work(engine):
        before = engine.stats().sent_bytes
        engine.all_reduce(np.ones(COUNT, np.float32)).wait(20)
        # A rank may have its own sums before it has sent all sums to the others.
        barrier(engine, 20)
        return engine.stats().sent_bytes - before

    sent = ranks.run(work)
    names = sorted(set(hosts))
    by_host = [sum(bytes for bytes, host in zip(sent, hosts, strict=True) if host == name) for name in names]
    expected = busiest_share(len(names), helpers) * COUNT * 4
    # Headers of small chunks are half a percent; headers between ranks of one host are counted, too.
    within = 0.01 if len(names) == len(hosts) else 0.015
    assert max(by_host) == pytest.approx(expected, rel=within)
    assert min(by_host) == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("kind", KINDS)
def test_16_bits_on_the_wire_are_half_the_bytes(world, kind):
    def work(engine):
        engine.all_reduce(np.ones(COUNT, np.float32), wire="bf16").wait(20)
        return engine.stats().sent_bytes

    for sent in world("ab", 2, kind).run(work):
        assert sent == pytest.approx(COUNT * 2, rel=0.01)


def test_one_host_sends_headers_alone(world):
    def work(engine):
        engine.all_reduce(np.ones(COUNT, np.float32)).wait(20)
        return engine.stats().sent_bytes

    assert max(world("aaa").run(work)) < 5_000


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixed"])
def test_a_servers_memory_is_bounded_by_the_window(kind):
    """32 MB of two ranks pass through 2 x 4 slots of 64 KiB."""
    token = secrets.token_hex(8).encode()
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    environment = {
        **os.environ,
        "HERRINGBONE_REDUCE": kind,
        ReduceVariable.HOST: "helper",
        ReduceVariable.TOKEN_FILE: f"/dev/fd/{reads}",
    }
    command = [sys.executable, "-m", "herringbone_parallel.reduce.server"]
    with subprocess.Popen(command, env=environment, pass_fds=[reads], stdout=subprocess.PIPE, text=True) as server:
        os.close(reads)
        port = json.loads(server.stdout.readline())["port"]
        servers = (ReduceServer("helper", "127.0.0.1", port),)
        world = start("ab", 0, kind, servers=servers, token=token, window=Window(64 << 10, 4))
        try:
            before = peak_kilobytes(server.pid)
            world.run(lambda engine: engine.all_reduce(np.ones(8_000_000, np.float32)).wait(60))
            assert peak_kilobytes(server.pid) - before < 6_000
        finally:
            world.close()
            server.terminate()


def peak_kilobytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_without_a_compiler_nothing_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    assert build.main([str(tmp_path)]) == 0
    assert "the core in Python will be used" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
