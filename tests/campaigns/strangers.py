"""Strangers at the service, with and without TLS, and at the page, next to an honest user.

Usage: `.venv/bin/python -m tests.campaigns.strangers [--strangers N] [--seconds S]` from the root of the repository.
The last line is JSON: the seconds of each user's answers, at worst and in the middle.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.serve.signing import signed
from tests.serve.test_live import Running

# Sent once by each stranger: nothing, the begin of a head, no HTTP, requests without a right proof, a body that never
# comes, and the begin of a handshake.
SENT = (
    b"",
    b"GET / HT",
    b"\x00\xff" * 40,
    b"GET /mine/a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 3,
    b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-amz-target: SageMaker.ListTrainingJobs\r\ncontent-length: 9000\r\n\r\nx",
    b"GET /api/jobs?token=wrong HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


class Strangers:
    """A crowd that holds `count` connections to a port; whoever is closed comes again, and nobody reads."""

    def __init__(self, port: int, count: int) -> None:
        self._port, self._count = port, count
        self.came = 0
        self.is_there, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Strangers:
        self._thread.start()
        assert self.is_there.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        # Answers stay unread, so only the end of a connection is an event.
        poll, held = select.poll(), dict[int, socket.socket]()
        while not self._ends.is_set():
            for _ in range(min(100, self._count - len(held))):
                with suppress(OSError):
                    connection = self._come()
                    held[connection.fileno()] = connection
                    poll.register(connection, select.POLLRDHUP)
            if self.came >= self._count:
                self.is_there.set()
            for descriptor, _ in poll.poll(20):
                poll.unregister(descriptor)
                held.pop(descriptor).close()
        for connection in held.values():
            connection.close()

    def _come(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), 5)
        connection.setblocking(False)
        with suppress(OSError):
            connection.sendall(SENT[self.came % len(SENT)])
        self.came += 1
        return connection


def answers(ask: Callable[[], int], port: int, *, strangers: int, seconds: float) -> dict[str, float]:
    """Return the seconds that an honest user's requests take next to strangers. Raises for another answer than 200."""
    took = []
    with Strangers(port, strangers) as crowd:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(took) < 3:
            begin = time.monotonic()
            assert (status := ask()) == 200, status
            took.append(time.monotonic() - begin)
            time.sleep(0.05)
    middle = statistics.median(took)
    return {"worst": round(max(took), 3), "median": round(middle, 3), "asked": len(took), "strangers": crowd.came}


def asking_service(running: Running) -> Callable[[], int]:
    """Return a user's signed call, each over a connection of its own."""

    def ask() -> int:
        request = signed(running.ada, "SageMaker.ListTrainingJobs", b"{}", now=time.time())
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        if running.tls is not None:
            context = ssl.create_default_context(cafile=str(running.tls[0]))
            connection = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=20, context=context)
        with closing(connection):
            headers = dict(request.headers) | {"x-nonce": os.urandom(4).hex()}
            connection.request("POST", "/", b"{}", headers)
            return connection.getresponse().status

    return ask


@contextmanager
def page(home: Path) -> Iterator[tuple[int, Callable[[], int]]]:
    """Run the page; yield its port, and the request of the token's holder."""
    command = [sys.executable, "-m", "herringbone", "page", "--no-open"]
    environment = {**os.environ, "HERRINGBONE_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        port, token = int(address.partition("127.0.0.1:")[2].partition("/")[0]), address.rpartition("token=")[2]
        cookie = f"herringbone-{hashlib.sha256(token.encode()).hexdigest()[:12]}={token}"

        def ask() -> int:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
                connection.request("GET", "/api/jobs", headers={"cookie": cookie})
                return connection.getresponse().status

        try:
            yield port, ask
        finally:
            process.terminate()
            process.wait(20)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1, and return it with its key."""
    files = folder / "own.pem", folder / "own.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-out", files[0], "-keyout", files[1]]
    words += ["-subj", "/CN=own", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(words, check=True, capture_output=True)
    return files


def campaign(folder: Path, *, strangers: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures of each listener."""
    figures = {}
    for name, tls in (("service", None), ("service with TLS", certificate(folder))):
        running = Running(folder / name, tls=tls)
        try:
            figures[name] = answers(asking_service(running), running.port, strangers=strangers, seconds=seconds)
        finally:
            running.end()
    with page(folder / "home") as (port, ask):
        figures["page"] = answers(ask, port, strangers=strangers, seconds=seconds)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strangers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = campaign(Path(folder), strangers=arguments.strangers, seconds=arguments.seconds)
    print(json.dumps(figures))
    return 0 if all(each["worst"] <= 1.0 for each in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
