"""Broken headers and hellos against the sums between hosts: both cores must refuse them and end in good order.

    python -m tests.campaigns.reduce_headers [--headers 100000] [--seed 1]

Each core gets `--headers` headers, and the readers of hellos get as many hellos. The native core runs under the address
and undefined-behaviour sanitizers. The last line of the output is JSON. Exits 1 if a core crashed, went on, or blamed
itself. The short form runs with the tests (`tests/parallel/reduce/test_native.py`, `test_broken_headers.py`). Takes two
minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.shards import Shard
from herringbone_parallel.reduce.cores.base import CoreConfig, Limit, LinkSpec, Role, Submission
from herringbone_parallel.reduce.cores.messages import LAYOUT, Header, Kind
from herringbone_parallel.reduce.cores.python_core import PythonCore
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.join.lane_hello import LaneHello
from herringbone_parallel.reduce.join.rendezvous import RankInfo
from tests.parallel.reduce import test_native
from tests.parallel.reduce.hellos import HELLO, INFO

_CHUNK, _RING, _ELEMENTS = 1024, 4096, 512
_FORMATS = ((Element.FLOAT32, Element.FLOAT32), (Element.FLOAT32, Element.FLOAT16), (Element.FLOAT16, Element.FLOAT32))
_EDGES = (0, 1, 63, 64, 255, 1024, 4096, 0x3FFFFFFF, 0x40000001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)
_USUAL = (Kind.PUSH,) * 3 + (Kind.SUM,) * 3 + (Kind.ALIVE, Kind.ABORT, Kind.LEAVE, Kind.LEFT)
_VALUES = (
    *(None, True, -1, 0, 1, 2**31, 2**32, 2**64, 10**30, 0.5, 1e308, float("inf"), float("nan")),
    *("", "x" * 1000, "\ud800", "\x1b[2J", [], [[]], [["a", 1]] * 100, {}, {"rail": 1e99}),
)


def native(headers: int, seed: int) -> dict[str, int]:
    """Send headers to the compiled core under sanitizers (`tests/parallel/reduce/native/fuzz.c`)."""
    counts = {"connections": 0, "headers": 0, "chunks": 0}
    with tempfile.TemporaryDirectory() as folder:
        program = test_native.program(Path(folder), "fuzz", ("pthread_create", "pthread_join"))
        while counts["headers"] < headers:
            # The program limits its own time, so a long campaign is several runs.
            words = test_native.run(program, min(6_000, max(1, (headers - counts["headers"]) // 3)), seed).split()
            seed += 1
            for name, word in zip(counts, (words[0], words[3], words[5]), strict=True):
                counts[name] += int(word)
    return counts


def python_core(headers: int, seed: int) -> dict[str, int]:
    """Send headers to the core in Python; raises `AssertionError` for a core that blames itself or goes on."""
    choose = random.Random(seed)
    counts = {"connections": 0, "headers": 0, "chunks": 0}
    # Its thread's function runs here, once all messages are in the sockets: every run does the same.
    with mock.patch.object(threading.Thread, "start"), mock.patch.object(threading.Thread, "join"):
        while counts["headers"] < headers:
            role = choose.choice((None, Role.PEER, Role.HELPER, Role.LOCAL))
            sent, taken = _attack(choose, role)
            for name, more in zip(counts, (1, sent, taken), strict=True):
                counts[name] += more
    return counts


def hellos(count: int, seed: int) -> dict[str, int]:
    """Read changed hellos; raises what a listener would not expect from a value that arrived as JSON."""
    choose = random.Random(seed)
    refused = 0
    for number in range(count):
        reader, valid = ((LaneHello.of, HELLO), (RankInfo.of, INFO))[number % 2]
        hello: dict[str, Any] = dict(valid)
        for name in choose.sample(sorted(hello), choose.randint(1, 3)):
            hello[name] = choose.choice(_VALUES)
            if not choose.randrange(4):
                del hello[name]
        try:
            read: Mapping[str, Any] = json.loads(json.dumps(hello))
            result = reader(read)
        except (ParallelError, KeyError, TypeError, ValueError):
            refused += 1
            continue
        if isinstance(result, LaneHello):
            assert 0 < result.chunk_bytes <= result.ring < 2**31, hello
            assert 0 < result.members * result.most <= 2**24, hello
            assert 0 <= result.member < result.members, hello
            result.label.encode()
    return {"hellos": count, "refused": refused}


def _attack(choose: random.Random, role: Role | None) -> tuple[int, int]:
    """Attack one core, a helper's if `role` is None; return the headers sent and the chunks that it took."""
    pairs = [socket.socketpair() for _ in range(2 if role is None else 1)]
    ring = np.zeros(_RING, np.uint8)
    address = int(ring.ctypes.data) if role is Role.LOCAL else 0
    index = {None: 0, Role.PEER: 1, Role.HELPER: 0, Role.LOCAL: 1}[role]
    links = tuple(
        LinkSpec(
            pair[0].detach(), Role.PEER if role is None else role, index + number, "the attacker", address, address
        )
        for number, pair in enumerate(pairs)
    )
    local = role is Role.LOCAL
    core = PythonCore(
        CoreConfig(
            "the core",
            member=-1 if role is None else 0,
            members=1 if local else 2,
            helpers=int(role is Role.HELPER),
            local=0,
            locals=1 + local,
            lanes=1 + local,
            ranks=2,
            chunk_bytes=_CHUNK,
            limit=Limit(_RING, 8),
            local_limit=Limit(_RING, 8),
            silence=60,
            late=60,
            links=links,
        )
    )
    element, wire = _FORMATS[0] if local else choose.choice(_FORMATS)
    buffer = np.zeros(_ELEMENTS, element.stored)
    if role is not None:
        half = _ELEMENTS // 2
        own, other = Shard(int(role is Role.HELPER), 0, half), Shard(int(role is Role.PEER), half, half)
        lanes = ((own,), (other,)) if local else ((own, other),)
        core.submit(Submission(int(buffer.ctypes.data), _ELEMENTS, element, wire, 1, 2, _CHUNK // 8, _RING, lanes))
    stream, sent = _stream(choose, local, element, wire)
    for _, end in pairs:
        end.sendall(stream)
        end.shutdown(socket.SHUT_WR)
    core._run()
    failure = core.failure()
    assert core.ended(), "the core goes on"
    assert failure is not None or role is None, "a rank ended without a reason"
    assert "mistake of our own" not in (failure or ""), failure
    for _, end in pairs:
        end.close()
    return sent, sum(count.received_chunks for count in core.counts())


def _stream(choose: random.Random, local: bool, element: Element, wire: Element) -> tuple[bytes, int]:
    """Return messages, most of them with changed headers, and their number; the last one is of no kind."""
    # Messages that do nothing, more than a core receives in one turn: it sends and sums between two turns.
    turn = Header(Kind.ALIVE).pack() * 40
    parts, first, number = [turn], choose.choice(_USUAL), choose.randint(1, 6)
    for position in range(number):
        kind = first if choose.randrange(4) else choose.choice(_USUAL)
        header = bytearray(_valid(kind, position, local, element, wire).pack())
        for _ in range(choose.randrange(4)):
            _mutate(choose, header)
        length = struct.unpack_from("<I", header, 4)[0]
        parts += [bytes(header), choose.randbytes(length if length <= _CHUNK else 16)]
    return b"".join([*parts, turn, bytes([0xEE]), bytes(LAYOUT.size - 1)]), number


def _valid(kind: Kind, number: int, local: bool, element: Element, wire: Element) -> Header:
    """Return a header that a core would accept as the stream's header of this number."""
    if kind not in (Kind.PUSH, Kind.SUM):
        return Header(kind, length=40 if kind == Kind.ABORT else 0)
    count = _CHUNK // 8
    header = Header(kind, element, wire, 0, 0, number * count + (kind == Kind.SUM) * _ELEMENTS // 2, count, 2.0)
    size = (wire if kind == Kind.PUSH else header.sum_element).size
    return header if local else header._replace(length=count * size)


def _mutate(choose: random.Random, header: bytearray) -> None:
    """Change one field: kind, element, wire, length, sequence, offset, elements, divisor, or one bit."""
    value = choose.choice(_EDGES) if choose.randrange(3) else choose.getrandbits(choose.randint(1, 64))
    fields = ((0, "B"), (1, "B"), (2, "B"), (4, "I"), (8, "Q"), (16, "Q"), (24, "I"), (28, "I"))
    if not choose.randrange(9):
        header[choose.randrange(len(header))] ^= 1 << choose.randrange(8)
        return
    at, kind = choose.choice(fields)
    limit = 10 if kind == "B" else 1 << 8 * struct.calcsize(kind)
    struct.pack_into(f"<{kind}", header, at, value % limit)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Send broken headers to both cores.")
    parser.add_argument("--headers", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    report: dict[str, Any] = {"seed": options.seed}
    try:
        report["hellos"] = hellos(options.headers, options.seed)
        report["python"] = python_core(options.headers, options.seed)
        report["native"] = native(options.headers, options.seed)
    except AssertionError as error:
        report["failure"] = str(error)[:2_000]
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report))
    return 1 if "failure" in report else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
