"""A mock of S3 for a module's tests, and this process's settings to reach it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.aws_mock import mock_aws


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mock_aws(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture
def s3(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return boto3's client of an empty mock with the bucket `mine`; this process finds the mock, too."""
    boto3 = pytest.importorskip("boto3")
    urllib.request.urlopen(f"{server}/moto-api/reset", data=b"", timeout=60).close()  # noqa: S310 - our own server
    variables = {
        "AWS_ENDPOINT_URL_S3": server,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock-secret-of-this-test",
        "AWS_CONFIG_FILE": str(tmp_path / "no-such-file"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-such-file"),
    }
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="mine")
    return client
