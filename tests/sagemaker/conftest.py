"""An account at a mock of AWS, empty at the start of each test."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone.home import Home
from tests.aws_mock import mock_aws

REGION = "eu-central-1"


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the mock."""
    with mock_aws(tmp_path_factory.mktemp("aws") / "log") as address:
        yield address


@pytest.fixture
def account(aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of a user who has logged in, at the mock; the mock's address."""
    reset = urllib.request.Request(f"{aws}/moto-api/reset", method="POST")  # noqa: S310 - our own server
    urllib.request.urlopen(reset, timeout=10).close()  # noqa: S310
    nothing = tmp_path / "no-such-file"
    for name, value in {
        "AWS_ENDPOINT_URL": aws,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(nothing),
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return aws


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home of jobs."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")
