"""Fetch a job's code from S3: the launcher's only use of boto3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone_contract.constants import Key
from herringbone_contract.errors import (
    AwsAccessError,
    AwsCredentialsError,
    AwsError,
    AwsUnavailableError,
    HerringboneError,
    InputError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

SCHEME = "s3://"
_ATTEMPTS = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_DENIED = ("403", "AccessDenied", "Forbidden")
_MISSING = ("404", "NoSuchKey", "NoSuchBucket")


def fetch(address: str, target: Path, environ: Mapping[str, str], region: str | None) -> None:
    """Fetch one object to a file.

    >>> fetch("s3://bucket/code/sourcedir.tar.gz", Path("/tmp/code.tar.gz"), os.environ, None)     # doctest: +SKIP

    boto3 looks for credentials in variables, then in the container's role, then in the machine's. `region` applies when
    no variable names a region; AWS_ENDPOINT_URL_S3 names another service with S3's interface. Raises `InputError` for
    an object that does not exist, `UnsupportedError` without boto3, and the `AwsError`s.
    """
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not bucket or not key:
        raise InputError(f"{Key.SUBMIT_DIRECTORY} {address!r}: expected {SCHEME}BUCKET/KEY")
    try:
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise UnsupportedError(
            f"{Key.SUBMIT_DIRECTORY} {address!r}: fetching it needs boto3, which this image lacks ({error}); add it to "
            "the image (`pip install boto3`), or take one that `herringbone images build` made"
        ) from error
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or region
    try:
        # This call fetches in parts and retries by itself, also when a connection breaks half-way.
        boto3.Session().client("s3", region_name=region, config=config).download_file(bucket, key, str(target))
    except ClientError as error:
        # `from None`: AWS's message about a wrong signature repeats the session's token.
        raise _refusal(error, address, bucket, key) from None
    except (BotoCoreError, Boto3Error) as error:
        raise _connection_error(error, address) from None
    except OSError as error:
        raise InputError(f"code at {address} cannot be written to {target.parent}: {error.strerror}") from error


def _refusal(error: ClientError, address: str, bucket: str, key: str) -> HerringboneError:
    response: dict[str, Any] = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return InputError(f"code at {address} is not there ({code}); was it removed after the job was submitted?")
    if code in _DENIED:
        return AwsAccessError(
            f"code at {address}: access denied; the job's role needs s3:GetObject on arn:aws:s3:::{bucket}/{key}, "
            "kms:Decrypt on the key of yours that it may be encrypted with, and s3:ListBucket on the bucket, without "
            "which S3 does not tell that something is missing",
            code=code,
        )
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    # These are the service's own troubles, and a retry of the job may succeed.
    if status >= 500 or status == 429:
        return AwsUnavailableError(f"code at {address}: S3 did not give it in {_ATTEMPTS} attempts ({code})", code=code)
    return AwsError(f"code at {address}: S3 refuses it: {code}", code=code)


def _connection_error(error: Exception, address: str) -> AwsError:
    # By name: the classes lie in botocore, which is imported only where S3 is used.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return AwsCredentialsError(
            f"code at {address}: no AWS credentials here; give the job a role, or its environment "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return AwsUnavailableError(
        f"code at {address}: S3 does not answer: {error}; a job without a way out needs an S3 endpoint in its network"
    )
