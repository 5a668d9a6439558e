"""A mock of AWS on this machine: moto, as a server of its own."""

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
def mock_aws(log: Path, at: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a mock whose requests are told in the file `log`; skips where moto is not installed.

    `at` is the address it listens at.
    """
    if find_spec("moto") is None or find_spec("boto3") is None:
        pytest.skip("moto is not installed; it is in the extra `dev`")
    program = f"from moto.server import main; main(['-H', '{at}', '-p', '0'])"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-c", program], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield _address(log, server)
    finally:
        server.terminate()
        server.wait(10)


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    """The server chooses its port, and says it once it listens."""
    for _ in range(300):
        if found := re.search(r"Running on (http://\S+)", log.read_text()):
            return found[1]
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the mock of AWS did not start:\n{log.read_text()}")
