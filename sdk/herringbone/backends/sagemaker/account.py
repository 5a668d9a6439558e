"""Look up and check the job's role, image and buckets in the caller's AWS account.

Only `create_bucket` changes the account. `resolve_role` and `trusts_sagemaker` are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from herringbone.aws.session import AwsSession, Caller
from herringbone_contract.errors import AwsAccessError, AwsError, ImageError, OptionError

_SAGEMAKER_SERVICE = "sagemaker.amazonaws.com"
_ROLE_ARN = re.compile(r"arn:(?P<partition>[\w-]+):iam::(?P<account>\d{12}):role/(?:.*/)?(?P<name>[\w+=,.@-]+)")
_ASSUMED_ROLE_ARN = re.compile(r"arn:[\w-]+:sts::\d{12}:assumed-role/(?P<name>[\w+=,.@-]+)/.+")
# SageMaker's console creates its roles below this path, and the ARN of an assumed role does not contain the path.
_CONSOLE_ROLE, _CONSOLE_PATH = "AmazonSageMaker-ExecutionRole", "service-role/"
_TRUST_STATEMENT = (
    '{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}'
)

_ECR_IMAGE = re.compile(
    r"(?P<registry>(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?)/"
    r"(?P<repository>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
_NO_IMAGE_CODES = ("ImageNotFoundException", "RepositoryNotFoundException")

# CreateBucket refuses this region as a LocationConstraint: buckets without one go there.
_REGION_WITHOUT_CONSTRAINT = "us-east-1"
_NO_BUCKET_CODES = ("404", "NoSuchBucket")


def find_role(session: AwsSession, role: str | None, *, say: Callable[[str], None]) -> str:
    """Return the ARN of a role given by name or ARN; None means the role that the caller has assumed.

    >>> find_role(session, "training", say=print)                 # doctest: +SKIP
    'arn:aws:iam::123456789012:role/training'

    Raises `OptionError` for a role that does not exist, belongs to another account, or does not trust SageMaker. Where
    the caller may not read roles, the ARN is built from the name, and `say` reports that the role was not checked.
    """
    name, arn = resolve_role(role, session.caller)
    try:
        with session.explain_errors(f"to find role {name}"):
            description = session.client("iam").get_role(RoleName=name)["Role"]
    except AwsAccessError:
        # Only a name or the caller's session leaves the ARN to a guess; a complete ARN needs no message.
        if role is None or role != arn:
            say(f"role {arn}: not checked, because the caller may not read roles (iam:GetRole)")
        return arn
    except AwsError as error:
        if error.code == "NoSuchEntity":
            raise OptionError(
                f"role: account {session.account} has no role {name!r}; `aws iam list-roles` lists its roles; "
                "take one that trusts sagemaker.amazonaws.com"
            ) from None
        raise
    if not trusts_sagemaker(description["AssumeRolePolicyDocument"]):
        owner = "" if role else ", which is the caller's own,"
        raise OptionError(
            f"role: {description['Arn']}{owner} does not let SageMaker assume it; give another (role=...), or add to "
            f"its trust policy: {_TRUST_STATEMENT}"
        )
    return str(description["Arn"])


def resolve_role(role: str | None, caller: Caller) -> tuple[str, str]:
    """Return a role's name and its ARN, without asking AWS. Pure.

    >>> resolve_role("training", Caller(account="123456789012", arn="arn:aws:iam::123456789012:user/me"))
    ('training', 'arn:aws:iam::123456789012:role/training')

    The ARN is a guess where the name alone does not tell the role's path. Raises `OptionError` where `role` names no
    role, or a role of another account.
    """
    if role is None:
        assumed = _ASSUMED_ROLE_ARN.fullmatch(caller.arn)
        if assumed is None:
            raise OptionError(
                f"role: missing, and the caller {caller.arn} has not assumed one; give the job's role by name or ARN"
            )
        role = assumed["name"]
        path = _CONSOLE_PATH if role.startswith(_CONSOLE_ROLE) else ""
        return role, f"{_partition_of(caller)}:iam::{caller.account}:role/{path}{role}"
    if not role.startswith("arn:"):
        name = role.rpartition("/")[2]
        return name, f"{_partition_of(caller)}:iam::{caller.account}:role/{role.strip('/')}"
    match = _ROLE_ARN.fullmatch(role)
    if match is None:
        raise OptionError(f"role: {role} is not the ARN of a role; one reads arn:aws:iam::{caller.account}:role/NAME")
    if match["account"] != caller.account:
        raise OptionError(
            f"role: {role} belongs to account {match['account']}, but the credentials belong to {caller.account}; a "
            "job's role must belong to the account that runs it. Give another role, or other credentials (AWS_PROFILE)"
        )
    return match["name"], role


def trusts_sagemaker(policy: Mapping[str, Any]) -> bool:
    """Return whether a trust policy lets SageMaker assume the role; AWS checks the conditions. Pure.

    >>> trusts_sagemaker({"Statement": {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"},
    ...                                 "Action": "sts:AssumeRole"}})
    False
    """
    return any(
        statement.get("Effect") == "Allow"
        and {"sts:AssumeRole", "sts:*", "*"} & set(_as_list(statement.get("Action")))
        and _names_sagemaker(statement.get("Principal"))
        for statement in _as_list(policy.get("Statement"))
    )


def _names_sagemaker(principal: Any) -> bool:
    if isinstance(principal, Mapping):
        principal = principal.get("Service")
    return bool({_SAGEMAKER_SERVICE, "*"} & set(_as_list(principal)))


def _as_list(value: Any) -> list[Any]:
    # IAM accepts a single value in place of a list with one entry.
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _partition_of(caller: Caller) -> str:
    """Return `arn:aws`, `arn:aws-cn` or the like."""
    return ":".join(caller.arn.split(":")[:2])


def check_image(session: AwsSession, image: str) -> None:
    """Raise `ImageError` for an image that is missing from the caller's own registry.

    >>> check_image(session, "123456789012.dkr.ecr.eu-west-1.amazonaws.com/mine:1")       # doctest: +SKIP

    SageMaker itself would report the missing image minutes later, after the hosts have started. Images of other
    registries, and registries that the caller may not read, stay unchecked: SageMaker pulls with the job's role.
    """
    match = _ECR_IMAGE.fullmatch(image)
    if match is None or match["account"] != session.account:
        return
    image_id = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"] or "latest"}
    try:
        with session.explain_errors(f"to find image {image}"):
            # The image may be in another region than the job.
            session.client("ecr", region=match["region"]).describe_images(
                registryId=match["account"], repositoryName=match["repository"], imageIds=[image_id]
            )
    except AwsAccessError:
        # The job's role may pull images that the caller may not list.
        return
    except AwsError as error:
        if error.code in _NO_IMAGE_CODES:
            raise ImageError(
                f"image_uri: {image}: the registry has no such image; push it: "
                f"`herringbone images push IMAGE {match['registry']}`"
            ) from None
        raise


def default_bucket(session: AwsSession) -> str:
    """Return the default bucket: the one of the user's own session, else the one that AWS's SDK uses, too."""
    return session.default_bucket or f"sagemaker-{session.region}-{session.account}"


def bucket_exists(session: AwsSession, bucket: str) -> bool:
    """Return whether a bucket exists; changes nothing.

    Raises `AwsAccessError` for a bucket of another account, `OptionError` for a bucket in another region.
    """
    try:
        with session.explain_errors(f"to look at bucket {bucket}"):
            # With ExpectedBucketOwner, S3 answers 403 for a bucket of another account, even a public one.
            head = session.client("s3").head_bucket(Bucket=bucket, ExpectedBucketOwner=session.account)
    except AwsAccessError as error:
        raise AwsAccessError(
            f"{error}. Or bucket {bucket} does not belong to account {session.account}: code and data go to buckets of "
            "the caller's own account only; name one of its buckets (code_location=...)",
            code=error.code,
        ) from None
    except AwsError as error:
        if error.code in _NO_BUCKET_CODES:
            return False
        raise
    # boto3 follows redirects to the bucket's region, but SageMaker refuses buckets outside the job's region.
    if (region := head.get("BucketRegion", session.region)) != session.region:
        raise OptionError(
            f"bucket {bucket} is in region {region}, but the job runs in {session.region}; name a bucket in "
            f"{session.region} (code_location=...), or run the job in {region}"
        )
    return True


def create_bucket(session: AwsSession, bucket: str) -> None:
    """Create a bucket in the caller's account, encrypted and without public access."""
    s3 = session.client("s3")
    constraint = {} if session.region == _REGION_WITHOUT_CONSTRAINT else {"LocationConstraint": session.region}
    try:
        with session.explain_errors(f"to create bucket {bucket}"):
            s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": constraint} if constraint else {}))
    except AwsError as error:
        if error.code == "BucketAlreadyExists":
            raise AwsAccessError(
                f"the default bucket {bucket} belongs to another account; name your own: code_location, output_path",
                code=error.code,
            ) from None
        # Another process of the caller may have created the bucket first, or may be creating it now.
        if error.code not in ("BucketAlreadyOwnedByYou", "OperationAborted"):
            raise
    owned_bucket = {"Bucket": bucket, "ExpectedBucketOwner": session.account}
    with session.explain_errors(f"to make bucket {bucket} private and encrypted"):
        # S3 may need a moment until it shows a new bucket, in particular one that another process is creating.
        s3.get_waiter("bucket_exists").wait(**owned_bucket, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        blocks = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        s3.put_public_access_block(**owned_bucket, PublicAccessBlockConfiguration=dict.fromkeys(blocks, True))
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
        s3.put_bucket_encryption(**owned_bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
