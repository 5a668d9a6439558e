"""Fixtures: an account at a mock of AWS, empty at the start of each test, and a scripted service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.sagemaker.backend import SageMakerBackend
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.system.polling import Pace
from tests.aws_mock import log_in, mock_aws, set_user
from tests.sagemaker.account import RequestRecorder, make_role
from tests.sagemaker.service import Service, serving

REGION = "eu-central-1"


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the mock."""
    with mock_aws(tmp_path_factory.mktemp("aws") / "log") as address:
        yield address


@pytest.fixture
def account(aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Empty the mock, set the environment of a logged-in user, and return the mock's address."""
    log_in(aws, tmp_path, monkeypatch, AWS_DEFAULT_REGION=REGION)
    return aws


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return a home without jobs, and set HERRINGBONE_HOME to it."""
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Yield a scripted AWS, and set the environment of its user."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    with serving() as service:
        set_user(service.address, tmp_path, monkeypatch, AWS_DEFAULT_REGION=REGION)
        yield service


@pytest.fixture
def boto() -> Any:
    """Return a user's boto3 session that shares the loaded service models."""
    return RequestRecorder().boto


@pytest.fixture
def recorder(account: str) -> RequestRecorder:
    """Return a recorder at the mock: its account has a role, and it has recorded nothing yet."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    session = RequestRecorder()
    make_role(session.boto)
    session.sent.clear()
    return session


@pytest.fixture
def index(home: Home) -> JobIndex:
    return JobIndex(home.index)


@pytest.fixture
def backend(home: Home) -> SageMakerBackend:
    """Return a backend that polls without long pauses."""
    return SageMakerBackend(home=home, pace=Pace(0.01, 0.05, 1.5))
