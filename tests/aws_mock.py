"""Run a mock of AWS on this machine: moto, in a server process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


@contextmanager
def mock_aws(log: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """Yield the URL of a mock that listens at `address` and logs its requests to the file `log`.

    Skips the test where moto is not installed.
    """
    if find_spec("moto") is None or find_spec("boto3") is None:
        pytest.skip("moto is not installed; it is in the extra `dev`")
    program = f"from moto.server import main; main(['-H', '{address}', '-p', '0'])"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-c", program], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield _wait_for_url(log, server)
    finally:
        server.terminate()
        server.wait(10)


def _wait_for_url(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Return the URL, which the server logs once it listens, because it chooses the port itself."""
    for _ in range(300):
        if match := re.search(r"Running on (http://\S+)", log.read_text()):
            return match[1]
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the mock of AWS did not start:\n{log.read_text()}")
