"""Translate boto's errors into Herringbone's errors, with advice on what to do next. Pure: boto is not imported.

No message contains a credential. AWS's text about a wrong signature repeats the session's token, so this module drops
that text.
"""

from __future__ import annotations

from typing import Any

from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError, OptionError

# Error codes of AWS's answers, grouped by the error that the user sees.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_UNKNOWN_CREDENTIALS = frozenset(
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
_TRY_LATER = frozenset(
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
# boto's own errors, by class name: some classes exist only in later versions of boto, and this module imports none.
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_LOGIN_EXPIRED = frozenset({"SSOError", "TokenRetrievalError", "LoginError"})
_NO_ANSWER = frozenset({"HTTPClientError", "ConnectionError", "EndpointConnectionError"})
# The permission that a call needs, where it differs from the call's name. Services not listed here name the missing
# permission in their own message.
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


def translate_error(
    error: Exception, action: str, *, profile: str | None = None, files: str = ""
) -> AwsError | OptionError:
    """Return Herringbone's error for an error that boto raised during `action`.

    >>> class NoCredentialsError(Exception): pass
    >>> print(translate_error(NoCredentialsError(), "to create job digits-1"))     # doctest: +ELLIPSIS
    to create job digits-1: no AWS credentials were found; log in with `aws sso login`, ...

    `profile` is the profile whose credentials were used; the login advice names it. `files` is what is wrong with AWS's
    files on this machine, which boto does not say.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _translate_answer(error, response, action, profile)
    # All base classes count, because later versions of boto add subclasses of the classes named above.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    login = _login(profile)
    if files and kinds & {"ConfigParseError", "NoRegionError", "ProfileNotFound", "NoCredentialsError"}:
        return AwsCredentialsError(f"{action}: {files}")
    if "NoRegionError" in kinds:
        return OptionError(no_region_message(action))
    if "ProfileNotFound" in kinds:
        return AwsCredentialsError(
            f"{action}: {error}; `aws configure list-profiles` lists the profiles, AWS_PROFILE chooses one"
        )
    if kinds & _LOGIN_EXPIRED:
        return AwsCredentialsError(f"{action}: the login to AWS has expired; {login}")
    if kinds & _NO_CREDENTIALS:
        # A credential provider's text may contain the credentials, so the message repeats the provider's name only.
        provider = getattr(error, "kwargs", {}).get("provider")
        problem = "no AWS credentials were found" if provider is None else f"no AWS credentials came from {provider}"
        return AwsCredentialsError(f"{action}: {problem}; {login}, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if kinds & _NO_ANSWER:
        return AwsUnavailableError(
            f"{action}: AWS does not answer: {error}; check the network, the proxy (HTTPS_PROXY), the region, "
            "and AWS_ENDPOINT_URL where it is set"
        )
    if "ResponseParserError" in kinds:
        return AwsUnavailableError(
            f"{action}: the answer does not come from AWS; check the proxy (HTTPS_PROXY) and AWS_ENDPOINT_URL"
        )
    return AwsError(f"{action}: {error}")


def no_region_message(action: str) -> str:
    """Return the message for an action that needs a region while none is set."""
    return (
        f"{action}: no AWS region is set; set AWS_DEFAULT_REGION, run `aws configure set region eu-west-1`, or give "
        "sagemaker_session=boto3.Session(region_name=...)"
    )


def _translate_answer(error: Exception, response: dict[str, Any], action: str, profile: str | None) -> AwsError:
    """Return the error for an answer in which AWS refuses or fails the request."""
    details = response["Error"]
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).strip()
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _EXPIRED:
        return AwsCredentialsError(f"{action}: the AWS credentials have expired; {_login(profile)}", code=code)
    if code in _UNKNOWN_CREDENTIALS:
        return AwsCredentialsError(
            f"{action}: AWS does not know these credentials ({code}); {_login(profile)}, or check which ones are "
            "used: `aws configure list`",
            code=code,
        )
    # HEAD requests have no body, so S3 answers them with a bare status instead of an error code.
    if code == "400":
        return AwsCredentialsError(
            f"{action}: AWS rejects the request, most often because the credentials have expired; {_login(profile)}",
            code=code,
        )
    if code in _DENIED:
        return AwsAccessError(f"{action}: access denied{_permission(error, message)}", code=code)
    if code in _TRY_LATER or status >= 500 or status == 429:
        return AwsUnavailableError(
            f"{action}: AWS cannot serve the request now ({code}): {message}; try again later", code=code
        )
    if code == "ResourceLimitExceeded":
        return AwsError(
            f"{action}: {message}; request a higher quota of SageMaker at https://console.aws.amazon.com/servicequotas",
            code=code,
        )
    return AwsError(f"{action}: {code}: {message}" if message else f"{action}: {code}", code=code)


def _permission(error: Exception, message: str) -> str:
    """Return AWS's own text about a denial, followed by the missing permission."""
    operation = str(getattr(error, "operation_name", ""))
    detail = f": {message}" if message not in ("", "Forbidden", "Access Denied") else ""
    permission = _PERMISSIONS.get(operation, operation)
    return f"{detail}; the caller needs the permission {permission}: ask the account's owner for it"


def _login(profile: str | None) -> str:
    return f"log in with `aws sso login{'' if profile is None else f' --profile {profile}'}`"
