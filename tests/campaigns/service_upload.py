"""Upload a large object through the whole service while slow clients hold connections; print its memory as JSON.

Usage: python tests/campaigns/service_upload.py [--gb 5] [--slow 100]. Slow clients send one byte of a request's head a
second. Each may lose its own connection, and nothing else: the upload ends whole, and calls are answered meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.serve import test_live as live  # noqa: E402

_MB = 1 << 20


class Zeros(io.RawIOBase):
    """A stream of so many bytes, which needs no disk; each MB begins with its number."""

    def __init__(self, size: int) -> None:
        self.size, self.at, self.digest = size, 0, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = min(self.size - self.at, size if size >= 0 else self.size)
        pieces = bytearray()
        while len(pieces) < size:
            number, inside = divmod(self.at + len(pieces), _MB)
            block = number.to_bytes(8, "big") + bytes(_MB - 8)
            pieces += block[inside : inside + size - len(pieces)]
        self.at += len(pieces)
        self.digest.update(pieces)
        return bytes(pieces)


def memory(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024, 1)


def hold(port: int, ends: threading.Event, cut: list[float]) -> None:
    """Hold connections as slowly as the service allows; note how long each lives."""
    while not ends.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            started = time.monotonic()
            connection.sendall(b"POST / HTTP/1.1\r\nX-Slow: ")
            connection.settimeout(1)
            while not ends.is_set():
                connection.sendall(b"x")
                with suppress(TimeoutError):
                    if connection.recv(1000) == b"":
                        break
            cut.append(time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=5)
    parser.add_argument("--slow", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-upload-") as folder:
        service = live.Running(Path(folder))
        ends, cut, answers = threading.Event(), [], []
        try:
            sagemaker, s3 = service.client(), service.client("s3")
            sagemaker.list_training_jobs()
            before = memory(service.process.pid, "VmRSS")
            holders = [threading.Thread(target=hold, args=(service.port, ends, cut)) for _ in range(options.slow)]

            def ask() -> None:
                while not ends.wait(1):
                    started = time.monotonic()
                    sagemaker.list_training_jobs()
                    answers.append(time.monotonic() - started)

            threads = [*holders, threading.Thread(target=ask)]
            for thread in threads:
                thread.start()
            content, started = Zeros(int(options.gb * 1e9)), time.monotonic()
            s3.upload_fileobj(content, "mine", "large")
            seconds = time.monotonic() - started
            ends.set()
            for thread in threads:
                thread.join()
            peak = memory(service.process.pid, "VmHWM")
            with (service.buckets / "mine" / "large").open("rb") as file:
                assert hashlib.file_digest(file, "sha256").digest() == content.digest.digest()
        finally:
            ends.set()
            service.end()
        assert "Traceback" not in (service.folder / "service.log").read_text()
    result = {"gb": options.gb, "seconds": round(seconds, 1), "mb_before": before, "mb_peak": peak}
    result |= {"slow_clients": options.slow, "slow_connections": len(cut), "longest_s": round(max(cut, default=0), 1)}
    print(json.dumps({**result, "answers": len(answers), "slowest_answer_s": round(max(answers, default=0), 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
