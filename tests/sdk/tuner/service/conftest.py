"""Fixtures: a scripted SageMaker with tuning jobs, and an account at a mock of AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.aws_mock import set_user
from tests.sagemaker.conftest import REGION, account, aws, home, recorder  # noqa: F401 - fixtures
from tests.sagemaker.service import serving
from tests.sdk.tuner.service.tunings import TuningService


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a script."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TuningService]:
    """Yield a scripted AWS, and set the environment of its user."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    service = TuningService()
    with serving(service):
        set_user(service.address, tmp_path, monkeypatch, AWS_DEFAULT_REGION=REGION)
        yield service
