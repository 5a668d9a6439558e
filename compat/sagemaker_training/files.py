"""`sagemaker_training.files`: small files of a job, and the user's code from a folder, an archive or S3."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from herringbone_entry.preparation import code, s3
from sagemaker_training import environment, params

_S3_ENDPOINT = "AWS_ENDPOINT_URL_S3"


def write_success_file() -> None:
    """Write the empty file `success`, which says that the training has succeeded."""
    write_file(os.path.join(environment.output_dir, "success"), "")


def write_failure_file(failure_msg: str) -> None:
    """Write the reason of a failure, unless there is one: the script's own text comes first."""
    path = os.path.join(environment.output_dir, "failure")
    if not os.path.exists(path):
        write_file(path, failure_msg)


@contextmanager
def tmpdir(suffix: str = "", prefix: str = "tmp", directory: str | None = None) -> Iterator[str]:
    """Make a temporary folder, which is removed at the end of the block."""
    folder = tempfile.mkdtemp(suffix=suffix, prefix=prefix, dir=directory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_file(path: str, data: str | bytes, mode: str = "w") -> None:
    """Write text, or with mode "wb" bytes, to a file; makes its folder."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, mode) as file:
        file.write(data)


def read_file(path: str, mode: str = "r") -> Any:
    """Return a file's text, or with mode "rb" its bytes."""
    with open(path, mode) as file:
        return file.read()


def read_json(path: str) -> Any:
    """Return the content of a JSON file."""
    return json.loads(read_file(path))


def download_and_extract(uri: str, path: str) -> None:
    """Fill a folder with the code at `uri` (a folder, a file, a tar.gz, s3://...), unless the folder has files already.

    >>> download_and_extract("s3://bucket/code/sourcedir.tar.gz", "/opt/ml/code")        # doctest: +SKIP

    Raises Herringbone's `InputError`, `ArchiveError` or `AwsError`.
    """
    _apply_endpoint()
    code.fill(Path(path), uri, region=os.environ.get(params.REGION_NAME_ENV))


def s3_download(url: str, dst: str) -> None:
    """Fetch one object of S3 to a file. Raises `InputError` where it does not exist, and `AwsError`."""
    _apply_endpoint()
    s3.fetch(url, Path(dst), os.environ, os.environ.get(params.REGION_NAME_ENV))


def code_folder(uri: str) -> str:
    """Return the folder with the code at `uri`: a local folder itself, else `code_dir` after the code is fetched."""
    folder = uri.removeprefix("file://")
    if os.path.isdir(folder):
        return folder
    download_and_extract(uri, environment.code_dir)
    return environment.code_dir


def _apply_endpoint() -> None:
    # The toolkit's own variable; boto3 reads another one.
    if endpoint := os.environ.get(params.S3_ENDPOINT_URL):
        os.environ.setdefault(_S3_ENDPOINT, endpoint)
