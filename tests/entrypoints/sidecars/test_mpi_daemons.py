"""Requests for mpirun's daemons: checked where they come in, and started without a shell."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from herringbone_entry.channel.frames import Wire
from herringbone_entry.sidecars.mpi_daemons import Daemons


@pytest.fixture
def reports() -> list[dict]:
    return []


@pytest.fixture
def daemons(reports) -> Daemons:
    host = SimpleNamespace(name="algo-2", resources=SimpleNamespace(first_host="algo-1"))
    return Daemons(SimpleNamespace(host=host, report=reports.append, watched=[]))


def test_a_daemon_that_cannot_start_is_reported(daemons: Daemons, reports: list[dict]) -> None:
    # `posix_spawn` raised in the supervisor, which ended the job in an error of our own.
    order = {"kind": "spawn", "host": "algo-2", "number": 3, "argv": ["no-such-daemon; id"], "variables": {}}
    daemons.spawn(order, {"PATH": "/bin"})
    (report,) = reports
    assert (report["kind"], report["host"], report["number"], report["code"]) == ("daemon_ended", "algo-1", 3, 127)
    assert report["tail"] == ["algo-2: no-such-daemon; id: not found; PATH is /bin"]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"host": "algo-2"},
        {"host": "algo-2", "command": "id", "variables": {}},
        {"host": "algo-2", "argv": [], "variables": {}},
        {"host": "algo-2", "argv": ["a\0b"], "variables": {}},
        {"host": "algo-2", "argv": ["a"], "variables": ["b"]},
        {"host": "algo-2", "argv": ["a"], "variables": {"b": 1}},
        {"host": "algo-2", "argv": 1, "variables": {}},
    ],
)
def test_a_request_that_is_none_is_refused(daemons: Daemons, reports: list[dict], message: dict) -> None:
    ends = socket.socketpair()
    with ends[0], ends[1], pytest.raises((KeyError, TypeError, ValueError)):
        daemons.ask(Wire(ends[0]), message)
    assert reports == []
