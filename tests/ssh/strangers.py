"""Strangers at the ports of keepers: what somebody without the job's key can send. Connections of loopback and of ours.

python -m tests.ssh.strangers SECONDS ADDRESS:PORT ...    on a machine of the test: all of it, for so many seconds
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

Address = tuple[str, int]
_SECONDS = 5.0


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def say(address: Address, data: bytes) -> bytes:
    """Send bytes over a connection of their own, and return what came until the keeper has closed it."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=_SECONDS) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while chunk := stranger.recv(4_096):
            heard += chunk
    return heard


def garbage(address: Address, chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    data = chance.randbytes(chance.randrange(2_000))
    return say(address, [data, framed(data), framed(b"[" * 4_000), (1 << 31).to_bytes(4, "big") + data][kind])


def claim(address: Address, chance: random.Random) -> bytes:
    """Claim to be a machine of the job, with a proof that is none."""
    hello = {"to": chance.choice(["a", "b", "h-1"]), "from": "a", "challenge": os.urandom(32).hex()}
    return say(address, framed(json.dumps({**hello, "proof": os.urandom(32).hex()}).encode()))


@contextlib.contextmanager
def held(address: Address, count: int, *, slowly: bool = False) -> Iterator[list[socket.socket]]:
    """Hold so many connections open; `slowly` sends a hello over them, a byte a second."""
    with contextlib.ExitStack() as stack:
        strangers = []
        is_over = threading.Event()
        for _ in range(count):
            with contextlib.suppress(OSError):
                strangers.append(stack.enter_context(socket.create_connection(address, timeout=_SECONDS)))

        def trickle() -> None:
            for byte in framed(b"x" * 300):
                for stranger in strangers:
                    with contextlib.suppress(OSError):
                        stranger.send(bytes([byte]))
                if is_over.wait(1.0):
                    return

        thread = threading.Thread(target=trickle)
        if slowly:
            thread.start()
        try:
            yield strangers
        finally:
            is_over.set()
            if slowly:
                thread.join()


def besiege(addresses: list[Address], seconds: float, connections: int) -> None:
    """Do all of it at once, at all addresses, for so many seconds."""
    end = time.monotonic() + seconds

    def send(one: Callable[[Address, random.Random], bytes], address: Address, seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end:
            one(address, chance)

    def hold(address: Address, *, slowly: bool) -> None:
        while time.monotonic() < end:
            with held(address, connections, slowly=slowly):
                time.sleep(min(2.0, max(0.0, end - time.monotonic())))

    threads = [threading.Thread(target=send, args=(one, to, 7)) for to in addresses for one in (garbage, claim)]
    threads += [
        threading.Thread(target=hold, args=(to,), kwargs={"slowly": slowly}) for to in addresses for slowly in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    targets = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in sys.argv[2:])]
    besiege(targets, float(sys.argv[1]), 1_000)
