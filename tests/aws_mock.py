"""Run a mock of AWS on this machine: moto, in a server process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
        # A busy machine takes its time to end a process.
        server.wait(60)


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


def log_in(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, service: str = "", **variables: str
) -> dict[str, str]:
    """Empty the mock at an address, and set and return the environment of a user who is logged in to it.

    With a `service`, such as S3, only its requests go to the mock.
    """
    urllib.request.urlopen(f"{address}/moto-api/reset", data=b"", timeout=60).close()  # noqa: S310 - our own server
    return set_user(address, folder, monkeypatch, service=service, **variables)


def set_user(
    address: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, service: str = "", **variables: str
) -> dict[str, str]:
    """Set and return the environment of a user of the AWS at an address, without settings of this machine's users."""
    environment = {
        f"AWS_ENDPOINT_URL{service and '_'}{service}": address,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock",
        "AWS_CONFIG_FILE": str(folder / "no-such-file"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-such-file"),
        "AWS_EC2_METADATA_DISABLED": "true",
        **variables,
    }
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mock_aws(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture
def s3(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return boto3's client of an empty mock with the bucket `mine`; this process finds the mock, too."""
    boto3 = pytest.importorskip("boto3")
    log_in(s3_server, tmp_path, monkeypatch, service="S3", AWS_SECRET_ACCESS_KEY="mock-secret-of-this-test")  # noqa: S106
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="mine")
    return client
