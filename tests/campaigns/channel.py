"""Bad frames and strangers against the control channel: before the proof, after it, and hundreds of open connections.

Usage: `python -m tests.campaigns.channel [--before 100000] [--after 100000] [--connections 500] [--seed 1]`. The last
line is JSON with the counts. Exit code 1 when a frame that nobody sent was delivered, an exception escaped, the host of
the job did not join in the end, or descriptors stayed open.

[1] before     each input is a connection to a listener: a bad hello, which must cost that connection alone
[2] after      each input is a frame on a link: delivered if and only if it is the next frame of the other host
[3] held       silent connections stay open while a listener waits for a host, which must join
[4] reduction  as [3], at the listener of the sums between hosts: a process of the job is answered within a second, if
               the machine has nothing else to do
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from herringbone_contract.channel.session import session
from herringbone_entry.channel.address import UnixAddress
from herringbone_entry.channel.channel import Connector, Link, Listener
from herringbone_entry.channel.frames import Wire
from herringbone_entry.event_loop import Loop
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen

KEY = b"key of the job"
HOST = "algo-2"
# A process of the job must be answered in this time, however many strangers there are.
ANSWER_SECONDS = 1.0
_WORDS = ("host", "challenge", "proof", "kind", "spawn", "algo-2", "\ud800", "\0", "a" * 300, "0" * 64, "", "ä")


def framed(body: bytes) -> bytes:
    """Return a frame as the wire carries it."""
    return len(body).to_bytes(4, "big") + body


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return a random JSON value: texts, numbers near the limits, nested objects."""
    kind = chance.randrange(9 if depth < 4 else 5)
    if kind == 0:
        return chance.choice([None, True, False, 0, -1, 1 << 64, 1e308, float("nan"), 10**200])
    if kind <= 4:
        return chance.choice(_WORDS)
    if kind <= 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(_WORDS): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with some of them flipped, removed, repeated or added."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        index = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0 and index < len(changed):
            changed[index] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del changed[index : index + chance.randrange(1, 8)]
        elif kind == 2:
            changed[index:index] = changed[: chance.randrange(64)]
        else:
            changed[index:index] = chance.randbytes(chance.randrange(1, 8))
    return bytes(changed)


def hello(chance: random.Random) -> bytes:
    """Return the bytes of one bad hello."""
    kind = chance.randrange(7)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return framed(b"[" * chance.randrange(1, 4_000))
    if kind == 2:
        return framed(b'{"host":' * chance.randrange(1, 500))
    members = {"host": HOST, "challenge": "0" * 64, "proof": chance.choice(["0" * 64, "", "\ud800"])}
    if kind == 3:
        return framed(json.dumps(members | {chance.choice(list(members)): value(chance)}).encode())
    if kind == 4:
        return damaged(chance, framed(json.dumps(members).encode()))
    if kind == 5:
        return chance.randrange(1 << 32).to_bytes(4, "big") + chance.randbytes(50)
    return framed(json.dumps(value(chance), ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass"))


class Job:
    """A listener that waits for one host, and that host, which comes when the strangers have come."""

    def __init__(self, path: str) -> None:
        self.loop, self.joined = Loop(), 0
        self._address = UnixAddress(path)
        Listener(self._address, KEY, [HOST], self.loop, self._join)

    def run(self, strangers: Callable[[], None]) -> float:
        """Run the strangers in a thread; return how many seconds the host then needed to join."""
        thread = threading.Thread(target=strangers)
        thread.start()
        self._call_when_over(thread)
        self.loop.run()
        thread.join()
        return time.monotonic() - self._called

    def _call_when_over(self, thread: threading.Thread) -> None:
        if thread.is_alive():
            self.loop.later(0.02, lambda: self._call_when_over(thread))
            return
        self._called = time.monotonic()
        self.loop.later(30.0, lambda: self.loop.stop(1))
        Connector(self._address, KEY, HOST, self.loop, on_join=self._leave, on_gone=lambda: self.loop.stop(1))

    def _join(self, _host: str, wire: Wire) -> None:
        self.joined += 1
        wire.close()

    def _leave(self, wire: Wire) -> None:
        wire.close()
        # The listener hears of the proof later than the host sends it.
        self.loop.later(0.05, lambda: self.loop.stop(0))


def before(path: str, count: int, chance: random.Random) -> dict[str, Any]:
    """[1] Send bad hellos, each over a connection of its own."""
    closed = 0

    def come() -> None:
        nonlocal closed
        for _ in range(count):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(path)
                stranger.settimeout(5.0)
                with contextlib.suppress(OSError):
                    stranger.sendall(hello(chance))
                    # Half of a frame is no frame yet: the end of the connection is then ours.
                    stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4_096):
                        pass
                closed += 1

    job = Job(path)
    seconds = job.run(come)
    return {"before": count, "before_closed": closed, "before_joined": job.joined, "before_join_s": round(seconds, 3)}


def after(count: int, chance: random.Random) -> dict[str, Any]:
    """[2] Send one frame on each of many links: the next one of the other host, or one that somebody made of it."""
    taken: list[Any] = []
    sent = wrong = missed = 0
    for number in range(count):
        nonces = (f"{chance.getrandbits(256):064x}", f"{chance.getrandbits(256):064x}")
        first, other = (session(KEY, HOST, *nonces, is_first=is_first) for is_first in (True, False))
        body = json.dumps({"kind": "event", "number": number}).encode()
        earlier, frame = other.seal(b"{}"), other.seal(body)
        first.open(earlier)
        forged = [
            damaged(chance, framed(frame)),
            framed(earlier),
            framed(first.seal(body)),
            framed(body),
            framed(session(KEY, HOST, *nonces[::-1]).seal(body)),
            framed(session(b"another key", HOST, *nonces).seal(body)),
            framed(chance.randbytes(32) + body),
            framed(chance.randbytes(chance.randrange(80))),
        ]
        kind = chance.randrange(len(forged) + 1)
        data = forged[kind] if kind < len(forged) else framed(frame)
        genuine = data == framed(frame)
        taken.clear()
        # A loop that has stopped does not run again.
        loop = Loop()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            wire = Wire(ours)
            wire.trust(first)
            Link(wire, loop, heartbeat=5.0, on_message=taken.append, on_lost=lambda _, loop=loop: loop.stop(0))
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            loop.run()
        sent += genuine
        delivered = [message for message in taken if isinstance(message, dict)]
        # The next frame with bytes of a stranger behind it may count: nobody changed the frame itself.
        wrong += bool(delivered) and not data.startswith(framed(frame))
        missed += genuine and delivered != [json.loads(body)]
    return {"after": count, "after_genuine": sent, "after_wrongly_taken": wrong, "after_missed": missed}


def held(path: str, count: int) -> dict[str, Any]:
    """[3] Hold silent connections open while the host comes."""
    with contextlib.ExitStack() as stack:

        def come() -> None:
            for _ in range(count):
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX))
                while stranger.connect_ex(path):
                    # The listener's queue is full until its loop has come round.
                    time.sleep(0.001)

        job = Job(path)
        seconds = job.run(come)
    return {"held": count, "held_joined": job.joined, "held_join_s": round(seconds, 3)}


def reduction(count: int, answer_seconds: float) -> dict[str, Any]:
    """[4] Come at once with silent connections, and then with one of the job's own."""

    def admit(connection: Any, _hello: object) -> None:
        connection.send({})
        connection.close()

    acceptor = Acceptor([listen("127.0.0.1")], KEY, "server", admit)
    address = ("127.0.0.1", acceptor.port)
    with contextlib.closing(acceptor), contextlib.ExitStack() as stack:
        for _ in range(count):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex(address)
        began = time.monotonic()
        connection, _ = connect(address, "server", KEY, {}, began + 60)
        seconds = time.monotonic() - began
        connection.close()
    return {"reduction": count, "reduction_answered": seconds <= answer_seconds, "reduction_s": round(seconds, 3)}


def _left(open_before: int) -> int:
    """Return how many descriptors are still open once the threads of strangers' connections have had time to end."""
    deadline = time.monotonic() + 10.0
    while True:
        gc.collect()
        left = len(os.listdir("/proc/self/fd")) - open_before
        if left <= 0 or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def campaign(
    *, before_count: int, after_count: int, connections: int, seed: int, answer_seconds: float = ANSWER_SECONDS
) -> dict[str, Any]:
    """Run all three parts and return the counts; `failures` names what must not be.

    >>> campaign(before_count=10, after_count=10, connections=10, seed=1)["failures"]
    []
    """
    chance, began = random.Random(seed), time.monotonic()
    escaped: list[str] = []
    # A loop holds a descriptor of its own as long as it exists, and earlier tests of this process had loops, too.
    gc.collect()
    shown, threading.excepthook = threading.excepthook, lambda error: escaped.append(repr(error.exc_value))
    open_before = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory() as folder:
        counts = before(f"{folder}/before", before_count, chance)
        counts |= after(after_count, chance)
        counts |= held(f"{folder}/held", connections)
    counts |= reduction(connections, answer_seconds)
    threading.excepthook = shown
    counts |= {"descriptors_left": _left(open_before), "escaped": escaped}
    expected = {"before_closed": before_count, "before_joined": 1, "held_joined": 1, "reduction_answered": True}
    expected |= {"after_wrongly_taken": 0, "after_missed": 0, "descriptors_left": 0, "escaped": []}
    failures = [
        f"{name} is {counts[name]}, not {number}" for name, number in expected.items() if counts[name] != number
    ]
    return {**counts, "failures": failures, "seed": seed, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("before", 100_000), ("after", 100_000), ("connections", 500), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    counts = campaign(
        before_count=options.before, after_count=options.after, connections=options.connections, seed=options.seed
    )
    print(json.dumps(counts))
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
