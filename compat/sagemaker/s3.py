"""`sagemaker.s3`: copy files to and from a bucket, or a folder that a `file://` address names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from herringbone import InputError
from sagemaker import _absent
from sagemaker.session import Session


def is_s3_url(url: str) -> bool:
    """Say whether an address is one of S3."""
    return urlparse(url).scheme == "s3"


def parse_s3_url(url: str) -> tuple[str, str]:
    """Return the bucket and the key of an address.

    >>> parse_s3_url("s3://team/rows/a.csv")
    ('team', 'rows/a.csv')
    """
    parts = urlparse(url)
    if parts.scheme != "s3":
        raise ValueError(f"{url}: no address of S3; give s3://bucket/key")
    return parts.netloc, parts.path.lstrip("/")


def s3_path_join(*args: str, with_end_slash: bool = False) -> str:
    """Join the parts of an address.

    >>> s3_path_join("s3://team/", "rows", "/a.csv")
    's3://team/rows/a.csv'
    """
    scheme, separator, first = str(args[0] if args else "").partition("://")
    parts = [first if separator else scheme, *args[1:]]
    joined = "/".join(part.strip("/") for part in map(str, filter(None, parts)) if part.strip("/"))
    return f"{scheme}://{joined}{'/' if with_end_slash else ''}" if separator else joined


class S3Uploader:
    """Copies files to a bucket."""

    @staticmethod
    def upload(
        local_path: str,
        desired_s3_uri: str,
        kms_key: str | None = None,
        sagemaker_session: Session | None = None,
        callback: Any = None,
    ) -> str:
        """Copy a file or a folder, and return its address."""
        del callback
        if not is_s3_url(desired_s3_uri):
            return _copied(Path(local_path), _local(desired_s3_uri))
        bucket, key = parse_s3_url(desired_s3_uri)
        more = {"SSEKMSKeyId": kms_key, "ServerSideEncryption": "aws:kms"} if kms_key else None
        return (sagemaker_session or Session()).upload_data(local_path, bucket, key, extra_args=more)

    @staticmethod
    def upload_string_as_file_body(
        body: str | bytes, desired_s3_uri: str, kms_key: str | None = None, sagemaker_session: Session | None = None
    ) -> str:
        """Write a text into an object, and return its address."""
        if not is_s3_url(desired_s3_uri):
            path = _local(desired_s3_uri)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body.encode() if isinstance(body, str) else body)
            return desired_s3_uri
        session = sagemaker_session or Session()
        return session.upload_string_as_file_body(body, *parse_s3_url(desired_s3_uri), kms_key)

    @staticmethod
    def upload_bytes(b: Any, s3_uri: str, kms_key: str | None = None, sagemaker_session: Session | None = None) -> str:
        """Write bytes, or what a binary file has, into an object, and return its address."""
        content = b if isinstance(b, (bytes, bytearray)) else b.read()
        return S3Uploader.upload_string_as_file_body(content, s3_uri, kms_key, sagemaker_session)


class S3Downloader:
    """Copies objects from a bucket."""

    @staticmethod
    def download(
        s3_uri: str, local_path: str, kms_key: str | None = None, sagemaker_session: Session | None = None
    ) -> list[str]:
        """Copy the objects below an address into a folder, and return the files."""
        del kms_key
        if not is_s3_url(s3_uri):
            source, folder = _local(s3_uri), Path(local_path)
            return [_copied(path, folder / path.relative_to(_top(source)), "") for path in _files(source)]
        return (sagemaker_session or Session()).download_data(local_path, *parse_s3_url(s3_uri))

    @staticmethod
    def list(s3_uri: str, sagemaker_session: Session | None = None) -> list[str]:
        """Return the addresses of the objects below an address."""
        if not is_s3_url(s3_uri):
            return [f"file://{path}" for path in _files(_local(s3_uri))]
        bucket, key = parse_s3_url(s3_uri)
        return [f"s3://{bucket}/{found}" for found in (sagemaker_session or Session()).list_s3_files(bucket, key)]

    @staticmethod
    def read_file(s3_uri: str, sagemaker_session: Session | None = None) -> str:
        """Return the text of an object."""
        return S3Downloader.read_bytes(s3_uri, sagemaker_session).decode()

    @staticmethod
    def read_bytes(s3_uri: str, sagemaker_session: Session | None = None) -> bytes:
        """Return the content of an object."""
        if not is_s3_url(s3_uri):
            return _local(s3_uri).read_bytes()
        bucket, key = parse_s3_url(s3_uri)
        client = (sagemaker_session or Session()).s3_client
        content: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content


def _local(address: str) -> Path:
    parts = urlparse(address)
    if parts.scheme not in ("", "file"):
        raise InputError(f"{address}: no address of S3, and no file:// of this machine")
    return Path(parts.path)


def _top(source: Path) -> Path:
    return source.parent if source.is_file() else source


def _files(source: Path) -> Iterator[Path]:
    return iter([source]) if source.is_file() else (path for path in sorted(source.rglob("*")) if path.is_file())


def _copied(source: Path, target: Path, scheme: str = "file://") -> str:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / source.name if target.is_dir() else target)
    return f"{scheme}{target}"


__getattr__ = partial(_absent.absent, __name__)
