"""Find out whether the processes of a rank do something: compute, read, write, send or receive.

A host asks only while none of its ranks shows progress, so a job that steps never pays for it.

Sources: proc(5); sock_diag(7) and `struct tcp_info` of linux/tcp.h for the bytes of a connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from herringbone_entry import processes
from herringbone_entry.observer import proc

# Less is the work of threads beside the script, such as a progress bar's or a tracker's.
CPU_SHARE, BYTES_PER_SECOND = 0.1, 16 << 10
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DONE, _ERROR = 4, 20, 3, 2
_REQUEST_AND_DUMP = 0x301
_INET_DIAG_INFO = 2
_HEADER_BYTES = 16
# Of inet_diag_msg: its size, and the place of the inode in it. Of tcp_info: the places of bytes_acked, bytes_received.
_MESSAGE_BYTES, _INODE_AT, _ACKED_AT = 72, 68, 120


class Work(NamedTuple):
    """The work of a rank's processes since they started: CPU seconds, and bytes read, written and received.

    `starved` is how many seconds their threads could have run and did not, because others had the CPUs.
    """

    cpu: float
    moved: int
    starved: float = 0.0


def is_work(before: Work, after: Work, seconds: float) -> bool:
    """Say whether a rank did something between two readings.

    >>> is_work(Work(1.0, 0), Work(1.2, 0), 1.0), is_work(Work(1.0, 0), Work(1.01, 900), 1.0)
    (True, False)

    A child that has ended takes its counters with it, so a fall is work, too: the parent has started and reaped it.
    """
    cpu, moved = after.cpu - before.cpu, after.moved - before.moved
    return cpu >= CPU_SHARE * seconds or moved >= BYTES_PER_SECOND * seconds or cpu < 0 or moved < 0


def is_starved(before: Work, after: Work, seconds: float) -> bool:
    """Say whether others had the CPUs between two readings, so that a rank is slow and does not stand still.

    >>> is_starved(Work(1.0, 0, 3.0), Work(1.1, 0, 3.4), 1.0)
    True
    """
    return after.starved - before.starved >= CPU_SHARE * seconds


def read(pids: Mapping[int, int]) -> dict[int, Work]:
    """Return what the processes of each rank have done so far, given the ranks' own processes."""
    parents, connections = processes.parents(), _connections()
    return {rank: _sum([pid, *processes.descendants(pid, parents)], connections) for rank, pid in pids.items()}


def _sum(pids: Iterable[int], connections: Mapping[str, int]) -> Work:
    cpu, moved, starved = 0.0, 0, 0
    for pid in pids:
        if (stat := processes.read_text(f"/proc/{pid}/stat")) is not None:
            cpu += proc.parse_stat(stat).cpu
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as in `processes`
                # Nanoseconds on a CPU, nanoseconds of waiting for one, and a count; not with every kernel.
                fields = (processes.read_text(f"/proc/{pid}/task/{thread}/schedstat") or "").split()
                starved += int(fields[1]) if len(fields) > 1 else 0
        # Another user's process shows no bytes.
        if (io := processes.read_text(f"/proc/{pid}/io")) is not None:
            counters = proc.parse_pairs(io.replace(":", ""))
            moved += counters.get("rchar", 0) + counters.get("wchar", 0)
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - as in `processes`
                with contextlib.suppress(OSError):
                    moved += connections.get(os.readlink(f"/proc/{pid}/fd/{name}"), 0)  # noqa: PTH115
    return Work(cpu, moved, starved / 1e9)


def _connections() -> dict[str, int]:
    """Return the bytes that each TCP connection has received and sent, by the name of its socket in /proc/PID/fd."""
    found: dict[str, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        # No such protocol in a sandbox: what connections move is not known then.
        with contextlib.suppress(OSError, struct.error):
            for data in _dump(family):
                found.update(parse_messages(data))
    return found


def _dump(family: int) -> Iterable[bytes]:
    states = 0xFFFFFFFF
    body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), states)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        link.send(
            struct.pack("=IHHII", _HEADER_BYTES + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0) + body
        )
        while data := link.recv(1 << 16):
            yield data
            if any(kind in (_DONE, _ERROR) for kind, _, _ in _messages(data)):
                return


def parse_messages(data: bytes) -> dict[str, int]:
    """Read the answers of the kernel to a dump of TCP connections. Raises `struct.error` for other bytes."""
    found = {}
    for kind, at, end in _messages(data):
        if kind != _SOCK_DIAG_BY_FAMILY:
            continue
        (inode,) = struct.unpack_from("=I", data, at + _INODE_AT)
        part = at + _MESSAGE_BYTES
        while part + 4 <= end:
            size, name = struct.unpack_from("=HH", data, part)
            if name == _INET_DIAG_INFO and size >= 4 + _ACKED_AT + 16:
                acked, received = struct.unpack_from("=QQ", data, part + 4 + _ACKED_AT)
                found[f"socket:[{inode}]"] = acked + received
            part += max(4, (size + 3) & ~3)
    return found


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each message in `data`, and where its content begins and ends."""
    at = 0
    while at + _HEADER_BYTES <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        yield kind, at + _HEADER_BYTES, min(at + length, len(data))
        at += max(_HEADER_BYTES, (length + 3) & ~3)
