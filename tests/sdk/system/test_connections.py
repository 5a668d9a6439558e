"""The room of a server: who goes when there are too many connections, and which clients are too slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from herringbone.system.connections import Connection, Limits, Room, fitted
from herringbone_contract.errors import InputError


class Transport:
    """A transport of the loop, that takes note of its end, with bytes that wait to be sent."""

    def __init__(self, waiting: int = 0) -> None:
        self.waiting, self.aborted = waiting, False

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.waiting


class Crowd:
    """Connections of socket pairs, made at second 0, 1, 2, ..."""

    def __init__(self, limits: Limits) -> None:
        self.room, self.sockets = Room(limits), list[socket.socket]()
        self.ends = list[socket.socket]()

    def come(self, caller: str = "", *, is_idle: bool = True, waiting: int = 0) -> Connection:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        self.sockets.append(ours)
        connection = self.room.enter(ours, float(len(self.ends) - 1))
        connection.transport, connection.is_idle = Transport(waiting), is_idle
        if caller:
            assert self.room.admit(connection, caller)
        return connection


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd(Limits(strangers=2, of_caller=2, callers=3))
    yield crowd
    for each in crowd.sockets + crowd.ends:
        each.close()


def gone(*connections: Connection) -> list[bool]:
    return [each.transport.aborted for each in connections]


def test_the_oldest_stranger_goes_and_no_caller(crowd: Crowd) -> None:
    everybody = [crowd.come("ada"), *(crowd.come() for _ in range(4))]
    assert gone(*everybody) == [False, True, True, False, False]


def test_a_stranger_in_the_handshake_of_tls_goes_too(crowd: Crowd) -> None:
    crowd.come().transport = None
    crowd.come()
    crowd.come()
    assert crowd.ends[0].recv(1) == b""
    assert crowd.room.find(crowd.sockets[0].fileno()) is None


def test_a_caller_loses_the_oldest_idle_connection_and_is_refused_without_one(crowd: Crowd) -> None:
    busy, idle = crowd.come("ada", is_idle=False), crowd.come("ada")
    third = crowd.come("ada", is_idle=False)
    assert gone(busy, idle, third) == [False, True, False]
    assert not crowd.room.admit(crowd.come(), "ada")
    # Others have room, and each keeps a connection that has been let in.
    bob = crowd.come("bob", is_idle=False)
    assert crowd.room.admit(busy, "ada")
    assert not crowd.room.admit(crowd.come(), "eve")
    crowd.room.leave(busy)
    assert crowd.room.admit(crowd.come(), "eve")
    assert gone(busy, third, bob) == [False] * 3


def test_a_client_that_takes_nothing_of_an_answer_is_ended(crowd: Crowd) -> None:
    deaf, slow = (crowd.come(name, is_idle=False, waiting=9) for name in ("ada", "bob"))
    for each in (deaf, slow):
        each.head_since = None
    for now in range(2, 80, 10):
        slow.transport.waiting -= 1
        crowd.room.sweep(float(now))
    assert gone(deaf, slow) == [True, False]


def test_bytes_that_only_the_kernel_has_taken_from_its_buffer_count(crowd: Crowd) -> None:
    slow = crowd.come("ada", is_idle=False, waiting=9)
    slow.head_since = None
    crowd.sockets[0].sendall(b"x" * 10)
    assert not slow.is_overdue(0.0, crowd.room.limits)
    crowd.ends[0].recv(1024)
    assert not slow.is_overdue(61.0, crowd.room.limits)
    assert slow.is_overdue(122.0, crowd.room.limits)


def test_a_head_that_does_not_come_ends_the_connection(crowd: Crowd) -> None:
    silent, between = crowd.come(), crowd.come("ada")
    between.head_since = None
    crowd.room.sweep(10.0)
    assert gone(silent, between) == [False, False]
    crowd.room.sweep(10.1)
    assert gone(silent, between) == [True, False]


def test_a_crowd_that_is_too_slow_does_not_end_in_one_moment() -> None:
    """2,000 strangers came again at once, and others waited a second behind them."""
    crowd = Crowd(Limits(strangers=32))
    strangers = [crowd.come() for _ in range(20)]
    for more in (4, 8):
        crowd.room.sweep(100.0)
        assert gone(*strangers) == [True] * more + [False] * (20 - more)
    for each in crowd.sockets + crowd.ends:
        each.close()


def test_limits_that_do_not_fit_the_descriptors_are_refused_and_others_are_made_to_fit() -> None:
    assert fitted(None, 1024) == Limits()
    assert fitted(None, 256).descriptors <= 256
    assert fitted(None, 1).of_caller == 1
    with pytest.raises(InputError, match=r"300 callers need 984 open files, and this process may have 512.*ulimit -n"):
        fitted(Limits(callers=300), 512)
