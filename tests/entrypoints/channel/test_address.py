"""Addresses of the control channel, and attempts to connect to them."""

from __future__ import annotations

import socket
import time

import pytest
from tests.entrypoints.conftest import free_port

from herringbone_contract.errors import ContractError
from herringbone_entry.channel.address import TCPAddress, UnixAddress, parse_address
from herringbone_entry.event_loop import Loop


def test_both_kinds_are_read() -> None:
    assert parse_address("unix:/tmp/x:y", heartbeat=1.0) == UnixAddress("/tmp/x:y")
    assert parse_address("tcp:algo-1:7590", heartbeat=1.0) == TCPAddress("algo-1", 7590, 1.0)
    assert parse_address("tcp:[fe80::1]:7590", heartbeat=1.0) == TCPAddress("fe80::1", 7590, 1.0)


@pytest.mark.parametrize("control", ["", "unix:", "tcp:algo-1", "tcp::7590", "tcp:algo-1:0", "tcp:algo-1:x", "udp:a:1"])
def test_anything_else_is_refused_by_name(control: str) -> None:
    with pytest.raises(ContractError, match=f"control channel '{control}' is neither"):
        parse_address(control, heartbeat=1.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"], ids=["refused", "unknown"])
def test_an_address_without_a_listener_gives_no_connection_yet(host: str) -> None:
    loop, ends = Loop(), []
    TCPAddress(host, free_port(), 1.0).connect(loop, lambda connection: (ends.append(connection), loop.stop(0)))
    loop.run()
    assert ends == [None]


def test_a_slow_name_server_does_not_hold_up_the_loop(monkeypatch) -> None:
    # Docker asks the machine's own name servers about an unknown name, and they may be slow.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.3) or [(2, 1, 6, "", ("127.0.0.1", 1))])
    loop, turns = Loop(), []
    TCPAddress("127.0.0.1", 1, 1.0).connect(loop, lambda connection: (turns.append(connection), loop.stop(0)))
    loop.later(0.05, lambda: turns.append("turn"))
    loop.run()
    assert turns == ["turn", None]


def test_messages_are_sent_at_once_and_dead_machines_are_noticed() -> None:
    address = TCPAddress("127.0.0.1", free_port(), 2.0)
    with address.listen(1):
        loop, ends = Loop(), []
        address.connect(loop, lambda connection: (ends.append(connection), loop.stop(0)))
        loop.run()
        with ends[0] as connection:
            address.set_up(connection)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert not connection.getblocking()
