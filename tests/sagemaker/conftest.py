"""An account at a mock of AWS, empty at the start of each test."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.jobs.home import Home
from herringbone.jobs.index import JobIndex
from herringbone.jobs.polling import Pace
from tests.aws_mock import mock_aws
from tests.sagemaker.account import Wire, make_role
from tests.sagemaker.service import Service, serving

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
    log_in(aws, tmp_path, monkeypatch)
    return aws


def log_in(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the environment that of a user of the AWS at an address."""
    nothing = tmp_path / "no-such-file"
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(nothing),
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home of jobs."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """An AWS that does as it is told, and the environment of its user."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    with serving() as service:
        log_in(service.address, tmp_path, monkeypatch)
        yield service


@pytest.fixture
def boto() -> Any:
    """A session of the user's that need not read the services' models anew."""
    return Wire().boto


@pytest.fixture
def wire(account: str) -> Wire:
    """A session at the mock, in whose account there is a role, and which has sent nothing yet."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    made = Wire()
    make_role(made.boto)
    made.sent.clear()
    return made


@pytest.fixture
def index(home: Home) -> JobIndex:
    return JobIndex(home.index)


@pytest.fixture
def backend(home: Home) -> SageMakerBackend:
    """`ml.*` in a hurry."""
    return SageMakerBackend(home=home, pace=Pace(0.01, 0.05, 1.5))
