"""Code on S3: fetched from a mock of S3, and from a server that fails once in each way."""

from __future__ import annotations

import io
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.aws_mock import log_in, s3_server  # noqa: F401 - a fixture
from tests.entrypoints.conftest import free_port

from herringbone_contract.errors import (
    ArchiveError,
    AwsAccessError,
    AwsCredentialsError,
    AwsUnavailableError,
    InputError,
    UnsupportedError,
)
from herringbone_entry.preparation.code import fill

REGION = "eu-central-1"
ADDRESS = "s3://code/job/sourcedir.tar.gz"


def packed(**files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.fixture
def surroundings(
    s3_server: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, str]:
    """Return the environment of a container whose job has a role."""
    return log_in(s3_server, tmp_path, monkeypatch, service="S3", AWS_REGION=REGION)


@pytest.fixture
def put(surroundings: dict[str, str]) -> Callable[[bytes], None]:
    """Return a function that uploads the code's archive to the address in the job."""
    import boto3

    client = boto3.Session().client("s3", region_name=REGION)
    client.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": REGION})
    return lambda data: client.put_object(Bucket="code", Key="job/sourcedir.tar.gz", Body=data)


@contextmanager
def failing_s3(data: bytes, *troubles: int | str) -> Iterator[str]:
    """Serve one object as S3 would, after these first answers: a status, or "cut" for half of the object."""
    left = list(troubles)

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            trouble = left.pop(0) if left and not (left[0] == "cut" and self.command == "HEAD") else 200
            self.send_response(200 if trouble == "cut" else trouble)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command == "GET" and trouble != 503:
                self.wfile.write(data[: len(data) // 2] if trouble == "cut" else data)
            self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
    assert left == []


def test_a_job_fetches_its_code(make_job, surroundings, put) -> None:
    put(packed(**{"train.py": "import helper", "helper.py": "print('from S3')"}))
    job = make_job(**surroundings)
    job.write("", sagemaker_submit_directory=ADDRESS)
    (job.base() / "code" / "train.py").unlink()
    ended = job.run()["algo-1"]
    assert (ended.code, ended.lines) == (0, ["[algo-1:0] from S3"])


def test_the_region_of_the_hyperparameters_applies_if_no_variable_names_one(put, monkeypatch, tmp_path) -> None:
    put(packed(**{"train.py": ""}))
    monkeypatch.delenv("AWS_REGION")
    fill(tmp_path / "code", ADDRESS, region=REGION)
    assert (tmp_path / "code" / "train.py").is_file()


@pytest.mark.parametrize("address", ["s3://code/job/other.tar.gz", "s3://no-such-bucket/sourcedir.tar.gz"])
def test_a_missing_object_is_named(put, tmp_path, address: str) -> None:
    with pytest.raises(InputError, match=f"code at {address} is not there .*removed after"):
        fill(tmp_path / "code", address)


def test_an_address_without_a_key(tmp_path) -> None:
    with pytest.raises(InputError, match="'s3://bucket': expected s3://BUCKET/KEY"):
        fill(tmp_path / "code", "s3://bucket")


def test_an_archive_from_s3_is_checked_like_any_other(put, tmp_path) -> None:
    put(packed(**{"../evil.py": ""}))
    with pytest.raises(ArchiveError, match="would land outside"):
        fill(tmp_path / "code", ADDRESS)


def test_a_denial_names_the_permissions(surroundings, monkeypatch, tmp_path) -> None:
    with failing_s3(b"", 403) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        with pytest.raises(AwsAccessError, match=r"needs s3:GetObject on arn:aws:s3:::code/job/sourcedir\.tar\.gz"):
            fill(tmp_path / "code", ADDRESS)


def test_no_credentials(surroundings, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsCredentialsError, match="no AWS credentials here; give the job a role"):
        fill(tmp_path / "code", ADDRESS)


@pytest.mark.parametrize("troubles", [(503, 503), ("cut",)], ids=["slow down", "cut off half way"])
def test_a_temporary_error_is_retried(surroundings, monkeypatch, tmp_path, troubles: tuple[int | str, ...]) -> None:
    with failing_s3(packed(**{"train.py": "x" * 1000}), *troubles) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        fill(tmp_path / "code", ADDRESS)
    assert (tmp_path / "code" / "train.py").is_file()


def test_an_s3_that_does_not_answer(surroundings, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(AwsUnavailableError, match=r"S3 does not answer: .*an S3 endpoint in its network"):
        fill(tmp_path / "code", ADDRESS)


def test_an_image_without_boto3(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UnsupportedError, match=r"needs boto3, which this image lacks .*pip install boto3"):
        fill(tmp_path / "code", ADDRESS)
