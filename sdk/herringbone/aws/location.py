"""Addresses of objects in S3. Pure."""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

SCHEME = "s3://"


class S3Location(NamedTuple):
    """The location of an object in S3, or a prefix of such locations."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def parse_s3_uri(uri: str) -> S3Location:
    """Split an `s3://` URI into bucket and key, without slashes at the key's ends.

    >>> parse_s3_uri("s3://bucket/code/a.tar.gz")
    S3Location(bucket='bucket', key='code/a.tar.gz')
    """
    location = split_s3_uri(uri)
    return S3Location(location.bucket, location.key.strip("/"))


def split_s3_uri(uri: str) -> S3Location:
    """Split an `s3://` URI into bucket and key, and keep the slashes at the key's ends: they are part of a prefix.

    >>> split_s3_uri("s3://bucket/data/")
    S3Location(bucket='bucket', key='data/')
    """
    # A key may contain any character, also those with which the query of a URL begins.
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    return S3Location(bucket, key)


def is_s3(address: str | None) -> TypeGuard[str]:
    """Report whether an address is in S3.

    >>> is_s3("s3://bucket/data"), is_s3("/data"), is_s3(None)
    (True, False, False)
    """
    return address is not None and address.startswith(SCHEME)
