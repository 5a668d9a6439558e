"""What boto's errors mean for the user: which of our errors each is, and what to do next. Pure; boto is not imported.

No message holds a credential: what AWS says about a signature repeats the session's token, so it is not passed on.
"""

from __future__ import annotations

from typing import Any

from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError, OptionError

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_WRONG = frozenset(
    {
        "AuthFailure",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "InvalidToken",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED = frozenset({"403", "AccessDenied", "AccessDeniedException", "Forbidden", "UnauthorizedOperation"})
_LATER = frozenset(
    {
        "500",
        "502",
        "503",
        "504",
        "BandwidthLimitExceeded",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# boto's own errors, by the names of their classes: some came with later versions of it.
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_LOGIN = frozenset({"SSOError", "TokenRetrievalError", "LoginError"})
_NO_ANSWER = frozenset({"HTTPClientError", "ConnectionError", "EndpointConnectionError"})
# The permission behind a call, where the call's name is another; other services name the permission themselves.
_PERMISSIONS = {
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadObject": "s3:GetObject",
    "GetObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateBucket": "s3:CreateBucket",
    "PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "GetAuthorizationToken": "ecr:GetAuthorizationToken",
    "DescribeRepositories": "ecr:DescribeRepositories",
    "CreateRepository": "ecr:CreateRepository",
    "BatchGetImage": "ecr:BatchGetImage",
}


def explain(error: Exception, what: str, *, profile: str | None = None) -> AwsError | OptionError:
    """Return our error for one of boto's that came while doing `what`.

    >>> class NoCredentialsError(Exception): pass
    >>> print(explain(NoCredentialsError(), "to create job digits-1"))     # doctest: +ELLIPSIS
    to create job digits-1: no AWS credentials were found; log in with `aws sso login`, ...

    `profile` is the profile whose credentials were used, for the advice.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _refusal(error, response, what, profile)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    login = _login(profile)
    if "NoRegionError" in kinds:
        return OptionError(no_region(what))
    if "ProfileNotFound" in kinds:
        return AwsCredentialsError(
            f"{what}: {error}; `aws configure list-profiles` shows those that there are, AWS_PROFILE chooses one"
        )
    if kinds & _LOGIN:
        return AwsCredentialsError(f"{what}: the login to AWS has expired; {login}")
    if kinds & _NO_CREDENTIALS:
        # What a provider of credentials has to say may hold them; its name does not.
        provider = getattr(error, "kwargs", {}).get("provider")
        found = "no AWS credentials were found" if provider is None else f"no AWS credentials came from {provider}"
        return AwsCredentialsError(f"{what}: {found}; {login}, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if kinds & _NO_ANSWER:
        return AwsUnavailableError(
            f"{what}: AWS does not answer: {error}; look at the network, at a proxy (HTTPS_PROXY), and at the region"
        )
    if "ResponseParserError" in kinds:
        return AwsUnavailableError(
            f"{what}: the answer is not AWS's; look whether a proxy (HTTPS_PROXY) or AWS_ENDPOINT_URL stands between"
        )
    return AwsError(f"{what}: {error}")


def no_region(what: str) -> str:
    """Return what to say when no region is known."""
    return (
        f"{what}: no AWS region is set; set AWS_DEFAULT_REGION, run `aws configure set region eu-west-1`, or give "
        "sagemaker_session=boto3.Session(region_name=...)"
    )


def _refusal(error: Exception, response: dict[str, Any], what: str, profile: str | None) -> AwsError:
    said = response["Error"]
    code, message = str(said.get("Code", "")), str(said.get("Message", "")).strip()
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _EXPIRED:
        return AwsCredentialsError(f"{what}: the AWS credentials have expired; {_login(profile)}", code=code)
    if code in _WRONG:
        return AwsCredentialsError(
            f"{what}: AWS does not know these credentials ({code}); {_login(profile)}, or look which ones are used: "
            "`aws configure list`",
            code=code,
        )
    if code == "400":  # of a question without a body, whose answer has none to say more
        return AwsCredentialsError(
            f"{what}: AWS takes the question for wrong, most often because credentials have expired; {_login(profile)}",
            code=code,
        )
    if code in _DENIED:
        return AwsAccessError(f"{what}: access denied{_permission(error, message)}", code=code)
    if code in _LATER or status >= 500 or status == 429:
        return AwsUnavailableError(f"{what}: AWS asks to be asked later ({code}): {message}; try again", code=code)
    if code == "ResourceLimitExceeded":
        return AwsError(
            f"{what}: {message}; a quota is raised at https://console.aws.amazon.com/servicequotas, service SageMaker",
            code=code,
        )
    return AwsError(f"{what}: {code}: {message}" if message else f"{what}: {code}", code=code)


def _permission(error: Exception, message: str) -> str:
    """Repeat what AWS says about a denial, and name the permission that is missing."""
    operation = str(getattr(error, "operation_name", ""))
    detail = f": {message}" if message not in ("", "Forbidden", "Access Denied") else ""
    return (
        f"{detail}; the caller needs the permission {_PERMISSIONS.get(operation, operation)} (a policy that has all of "
        "them: docs/aws-account.md)"
    )


def _login(profile: str | None) -> str:
    return f"log in with `aws sso login{'' if profile is None else f' --profile {profile}'}`"
