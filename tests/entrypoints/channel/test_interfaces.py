"""The choice of the interface that leads to the other hosts."""

from __future__ import annotations

import socket

import pytest

from herringbone_entry.channel.interfaces import interfaces, local_address, pick

TWO = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"], "eth1": ["10.0.1.2", "fe80::1"]}


@pytest.mark.parametrize(
    ("named", "address", "expected"),
    [
        (["eth0", "eth0"], "10.0.1.2", "eth0"),
        ([None, "eth0"], "10.0.1.2", "eth1"),
        (["ens5", "eth0"], "fe80::1", "eth1"),
        ([None, "eth0"], None, "eth0"),
        (["ens5", "ens5"], None, None),
        (["ens5", "ens5"], "192.168.0.1", None),
    ],
)
def test_p28_the_job_chooses_first_then_the_address_decides(named, address, expected) -> None:
    assert pick(named, address, TWO) == expected


def test_this_machine_has_a_loopback_interface() -> None:
    assert any("127.0.0.1" in addresses for addresses in interfaces().values())


def test_an_ipv4_connection_to_a_dual_stack_listener_has_an_ipv4_address() -> None:
    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as client,
    ):
        ours, _ = server.accept()
        with ours:
            assert (local_address(ours), local_address(client)) == ("127.0.0.1", "127.0.0.1")


def test_a_unix_socket_has_no_address() -> None:
    with socket.socket(socket.AF_UNIX) as local:
        assert local_address(local) is None
