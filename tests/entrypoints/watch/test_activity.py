"""What ranks do while they show no progress: one real reading of this process, and its rules."""

import os
import socket
import struct

import pytest

from herringbone_entry.watch import activity
from herringbone_entry.watch.activity import Work


def test_bytes_of_connections_count_also_over_the_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        before = activity.read({3: os.getpid()})[3]
        other.sendall(bytes(300_000))
        received = 0
        while received < 300_000:
            received += len(client.recv(1 << 16))
        after = activity.read({3: os.getpid()})[3]
        other.close()
    assert after.moved - before.moved >= 300_000
    assert after.cpu >= before.cpu > 0.0
    assert activity.is_work(before, after, 1.0)


@pytest.mark.parametrize(
    ("after", "is_work"),
    [
        (Work(1.0, 1000), False),
        (Work(1.0 + 9.9, 1000), False),
        (Work(1.0 + 10.1, 1000), True),
        (Work(1.0, 1000 + 1_700_000), True),
        # A child with all of its counters is gone.
        (Work(1.0, 0), True),
    ],
)
def test_what_threads_beside_the_script_do_is_no_work(after, is_work):
    assert activity.is_work(Work(1.0, 1000), after, 100.0) is is_work


@pytest.mark.parametrize("data", [b"", b"x" * 15, b"\0" * 40, struct.pack("=IH", 1 << 30, 20) + b"\0" * 90])
def test_other_answers_of_the_kernel_are_none(data):
    assert activity.parse_messages(data) == {}
