"""Rails over libfabric's provider "tcp" on the loopback interface: the same bits and the same errors as over TCP."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from herringbone_entry.channel.reserved_port import ReservedPort
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.join.fabric import FabricRail, Relay, fabric_rails
from herringbone_parallel.reduce.join.listener import listen
from herringbone_parallel.reduce.join.rails import Rails
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.server import Server
from tests.parallel.reduce.conftest import KINDS
from tests.parallel.reduce.test_join import errors_of, settings

TCP = ("fabric:tcp",)
NOTICED_SECONDS = 5.0


@pytest.fixture(autouse=True)
def libfabric() -> None:
    if native.library() is None:
        pytest.skip("there is no C compiler, and so no native core")
    try:
        Relay(FabricRail("tcp", None), "127.0.0.1").close()
    except ParallelError as error:
        if "cannot be loaded" in str(error):
            pytest.skip("there is no libfabric.so.1: Debian's libfabric1 and Open MPI's wheel have it")


class Pair:
    """Two relays, and a connection between them for each `connect`."""

    def __init__(self, rails: int = 2) -> None:
        self.relays = [Relay(FabricRail("tcp", None), "127.0.0.1") for _ in range(rails)]
        self.lifelines: list[socket.socket] = []

    def connect(self, one: int, other: int, tag: int | None = None) -> tuple[socket.socket, socket.socket]:
        """Return both ends; with `tag`, the first end tags its messages with that instead of the agreed tag."""
        offers = [self.relays[one].offer(), self.relays[other].offer()]
        second_offer = dict(offers[1], tag=offers[1]["tag"] if tag is None else tag)
        near, far = socket.socketpair()
        self.lifelines += [near.dup(), far.dup()]
        first = self.relays[one].carry(near, offers[0], second_offer)
        second = self.relays[other].carry(far, offers[1], offers[0])
        for end in (first, second):
            end.settimeout(10)
        return first, second

    def start(self) -> None:
        for relay in self.relays:
            relay.start()

    def cut_lifelines(self) -> None:
        """Shut the lifelines down, as the end of a process does."""
        for lifeline in self.lifelines:
            lifeline.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        closing = [threading.Thread(target=relay.close) for relay in self.relays]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for lifeline in self.lifelines:
            lifeline.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    relays = Pair()
    yield relays
    relays.close()


def read_all(end: socket.socket) -> bytes:
    parts = []
    while part := end.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_bytes_arrive_in_order_both_ways_and_end(pair):
    one, other = pair.connect(0, 1)
    pair.start()
    sent = [np.random.default_rng(seed).bytes(3_000_001) for seed in (0, 1)]

    def send(end, data):
        end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    sending = [threading.Thread(target=send, args=given) for given in ((one, sent[0]), (other, sent[1]))]
    received: dict[int, bytes] = {}
    reading = [
        threading.Thread(target=lambda: received.update({1: read_all(one)})),
        threading.Thread(target=lambda: received.update({0: read_all(other)})),
    ]
    for thread in (*sending, *reading):
        thread.start()
    for thread in (*sending, *reading):
        thread.join()
    assert received == {0: sent[0], 1: sent[1]}
    one.close()
    other.close()


def test_bytes_sent_before_a_close_arrive(pair):
    one, other = pair.connect(0, 1)
    pair.start()
    one.sendall(b"last words")
    one.close()
    assert read_all(other) == b"last words"
    other.close()


def test_messages_without_the_agreed_tag_are_not_received(pair):
    """Anyone can send to an endpoint, which receives only messages with the tag that both ends agreed on in private."""
    stranger, receiver = pair.connect(0, 1, tag=12345)
    pair.start()
    stranger.sendall(b"x" * 32)
    receiver.settimeout(0.3)
    with pytest.raises(TimeoutError):
        receiver.recv(1)
    pair.cut_lifelines()
    stranger.close()
    receiver.close()


def test_a_connection_ends_with_its_lifeline(pair):
    one, other = pair.connect(0, 1)
    pair.start()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    pair.cut_lifelines()
    assert read_all(one) == b""
    assert read_all(other) == b""
    one.close()
    other.close()


def test_a_relay_that_was_not_started_ends_what_it_has():
    relays = Pair()
    one, other = relays.connect(0, 1)
    relays.close()
    assert (one.recv(1), other.recv(1)) == (b"", b"")
    one.close()
    other.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("hosts", "helpers"), [("aab", 0), ("abc", 1), ("ab", 2)])
def test_sums_have_the_bits_that_they_have_over_sockets(world, hosts, helpers, kind):
    given = [np.random.default_rng(rank).standard_normal(300_001).astype(np.float32) for rank in range(len(hosts))]

    def work(engine):
        sums = [given[engine.rank].copy(), given[engine.rank][:77].copy(), given[engine.rank].astype(np.float16)]
        for handle in [engine.all_reduce(one) for one in sums]:
            handle.wait(30)
        links = [(link.sent_bytes, link.received_bytes) for link in engine.stats().links]
        return [one.tobytes() for one in sums], all(sent > 0 and received > 0 for sent, received in links)

    over_sockets = world(hosts, helpers, kind).run(work)
    over_fabric = world(hosts, helpers, kind, rails=TCP).run(work)
    assert over_fabric == over_sockets
    assert all(used for _, used in over_fabric)


def test_connections_are_spread_over_several_rails(world):
    ranks = world("abc", 2, "native", rails=("fabric:tcp", "fabric:tcp/lo"))
    (first, *others) = ranks.run(sum_of_ones)
    assert (first == 3).all()
    assert all((first == other).all() for other in others)


def sum_of_ones(engine):
    data = np.ones(200_000, np.float32)
    engine.all_reduce(data).wait(30)
    return data


@pytest.mark.parametrize(
    ("hosts", "helpers", "victim", "signal_number", "named"),
    [
        ("abc", 0, 1, signal.SIGKILL, "rank 1 on b is gone"),
        ("ab", 1, -1, signal.SIGKILL, "the server on helper-0 is gone"),
        ("ab", 0, 1, signal.SIGSTOP, "rank 1 on b stopped answering"),
    ],
    ids=["killed", "server killed", "stopped"],
)
def test_a_lost_process_is_named_on_every_rank(job, monkeypatch, hosts, helpers, victim, signal_number, named):
    monkeypatch.setenv("HERRINGBONE_REDUCE_RAILS", *TCP)
    running = job("rounds", hosts, helpers, "native")
    running.wait_until_running()
    began = time.time()
    os.kill((running.servers[0] if victim < 0 else running.ranks[victim]).pid, signal_number)
    for rank in range(len(hosts)):
        if rank != victim:
            report = running.expect(rank, "failed")
            assert named in report["message"], report
            assert report["time"] - began < NOTICED_SECONDS


def test_a_server_handles_sigterm(job, monkeypatch):
    """Regression: libfabric handles SIGTERM while it looks for providers, and the server ended without statistics."""
    monkeypatch.setenv("HERRINGBONE_REDUCE_RAILS", *TCP)
    running = job("rounds", "ab", 1, "native")
    running.wait_until_running()
    (server,) = running.servers
    server.send_signal(signal.SIGTERM)
    assert json.loads(server.stdout.readline())["host"] == "helper-0"
    assert server.wait(10) == 0


def test_a_provider_that_is_not_here_is_named_with_those_that_are():
    with pytest.raises(ParallelError, match=r"rail 'fabric:nosuch': libfabric offers no nosuch here .* tcp/lo"):
        Rails(["fabric:nosuch"], "127.0.0.1")


def test_a_missing_library_is_named():
    with pytest.raises(ParallelError, match=r"rail 'fabric:tcp': libfabric cannot be loaded: libnowhere.so: cannot"):
        Relay(FabricRail("tcp", None), "127.0.0.1", "libnowhere.so")
    with pytest.raises(ParallelError, match="is no libfabric"):
        Relay(FabricRail("tcp", None), "127.0.0.1", "libm.so.6")


def test_a_helper_without_the_provider_says_so_before_ranks_come():
    with pytest.raises(ParallelError, match="libfabric offers no nosuch here"), listen("127.0.0.1") as listener:
        Server("helper", listener, b"x", None, ("fabric:nosuch",))


def test_ranks_on_different_networks_are_named():
    port = ReservedPort()
    port.release()
    rendezvous = "127.0.0.1", port.number
    for error in errors_of(settings(0, rendezvous, rails=TCP), settings(1, rendezvous)):
        assert "ranks disagree on the networks of their rails: tcp on rank 0,  on rank 1" in error


def test_a_helper_on_another_network_is_named():
    with socket.socket() as connection:
        with pytest.raises(ParallelError, match="those of the other end plain sockets: name the same"):
            Rails(TCP, "127.0.0.1").carry(connection, {"rail": 0}, None)
        with pytest.raises(ParallelError, match="the rails of the other end are libfabric's, those here are not"):
            Rails((), "127.0.0.1").carry(connection, None, {"rail": 0})
    with pytest.raises(ParallelError, match="the other end uses its rail 1, but there are 1 here"):
        Rails(TCP, "127.0.0.1").answer({"rail": 1})


def test_rails_are_all_of_one_kind():
    with pytest.raises(ParallelError, match="either all go over libfabric or none does"):
        fabric_rails(["eth0", "fabric:efa"])
    assert fabric_rails(["eth0"]) == ()
    assert fabric_rails(Settings.__dataclass_fields__["rails"].default) == ()
