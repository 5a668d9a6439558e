"""The buckets that code and data are put in: known to be the caller's own, and the default one made on demand."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from herringbone.aws.session import AwsSession
from herringbone_contract.errors import AwsAccessError, AwsError, OptionError

_FIRST_REGION = "us-east-1"  # the one whose name S3 does not take for a location
_MISSING = ("404", "NoSuchBucket")


class Place(NamedTuple):
    """An object's place, or a prefix of places."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def parse_place(address: str) -> Place:
    """Take an `s3://` address apart.

    >>> parse_place("s3://bucket/code/a.tar.gz")
    Place(bucket='bucket', key='code/a.tar.gz')
    """
    parts = urlsplit(address)
    return Place(parts.netloc, parts.path.strip("/"))


def default_bucket(session: AwsSession) -> str:
    """Return the default bucket: the one that the user's own session names, else the one that AWS's SDK uses too."""
    return session.default_bucket or f"sagemaker-{session.region}-{session.account}"


def is_there(session: AwsSession, bucket: str) -> bool:
    """Say whether a bucket is there; changes nothing.

    Raises `AwsAccessError` for one of another account, `OptionError` for one of another region.
    """
    try:
        with session.asking(f"to look at bucket {bucket}"):
            found = session.client("s3").head_bucket(Bucket=bucket, ExpectedBucketOwner=session.account)
    except AwsAccessError as error:
        raise AwsAccessError(
            f"{error}. Or bucket {bucket} is not of account {session.account}: code and data go to the caller's own "
            "account only; name a bucket of it (code_location=...)",
            code=error.code,
        ) from None
    except AwsError as error:
        if error.code in _MISSING:
            return False
        raise
    # boto follows a bucket to its region; the service does not.
    if (region := found.get("BucketRegion", session.region)) != session.region:
        raise OptionError(
            f"bucket {bucket} is in region {region}, and the job is to run in {session.region}: name a bucket of there "
            "(code_location=...), or run it in the other region"
        )
    return True


def make_bucket(session: AwsSession, bucket: str) -> None:
    """Create a bucket of the caller's: encrypted, without public access."""
    s3 = session.client("s3")
    where = {} if session.region == _FIRST_REGION else {"LocationConstraint": session.region}
    try:
        with session.asking(f"to create bucket {bucket}"):
            s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": where} if where else {}))
    except AwsError as error:
        if error.code == "BucketAlreadyExists":
            raise AwsAccessError(
                f"bucket {bucket}, the default one, is another account's; name yours: code_location, output_path",
                code=error.code,
            ) from None
        # Another process of the caller's may have been quicker, or is at it.
        if error.code not in ("BucketAlreadyOwnedByYou", "OperationAborted"):
            raise
    owned = {"Bucket": bucket, "ExpectedBucketOwner": session.account}
    with session.asking(f"to make bucket {bucket} private and encrypted"):
        s3.get_waiter("bucket_exists").wait(**owned, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        closed = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        s3.put_public_access_block(**owned, PublicAccessBlockConfiguration=dict.fromkeys(closed, True))
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        s3.put_bucket_encryption(**owned, ServerSideEncryptionConfiguration={"Rules": [rule]})
