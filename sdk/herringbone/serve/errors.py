"""The errors that the service answers with, under AWS's codes."""

from __future__ import annotations

from herringbone.s3.front.refusals import S3Error
from herringbone_contract.errors import (
    ArchiveError,
    AwsError,
    ContractError,
    EngineError,
    HerringboneError,
    HostError,
    ImageError,
    JobNameError,
    JobNotFoundError,
    ServiceError,
    TuningFailedError,
    UsageError,
)

# The code and the status of each error of ours; the first class that fits counts. AWS's SDKs repeat a call that ended
# with 500 or 503 for minutes, so a mistake of the caller's must have neither.
CODES: tuple[tuple[tuple[type[HerringboneError], ...], str, int], ...] = (
    ((JobNameError,), "ResourceInUse", 400),
    ((UsageError, ImageError, ArchiveError, ContractError, TuningFailedError), "ValidationException", 400),
    ((JobNotFoundError,), "ResourceNotFound", 400),
    # The service's own account may not read what the request names, or has no such bucket.
    ((AwsError,), "ValidationException", 400),
    ((ServiceError, EngineError, HostError), "ServiceUnavailable", 503),
    ((HerringboneError,), "InternalFailure", 500),
)


class ApiError(S3Error):
    """One refused call of any service: AWS's code, a message for the caller, and the HTTP status.

    >>> ApiError("ValidationException", "MaxResults is 0").status
    400
    """


def error_of(error: HerringboneError, message: str | None = None) -> ApiError:
    """Return the answer to an error of ours, with its own message unless another one is given.

    >>> error_of(ImageError("the engine has no image 'mine:1'")).status
    400
    """
    code, status = next((code, status) for classes, code, status in CODES if isinstance(error, classes))
    return ApiError(code, str(error) if message is None else message, status)


def invalid(message: str) -> ApiError:
    """Return the error for a request that is wrong in itself."""
    return ApiError("ValidationException", message)


def not_found() -> ApiError:
    """Return SageMaker's answer for a job that does not exist, or is not the caller's: nobody can tell them apart."""
    return ApiError("ValidationException", "Requested resource not found.")


def in_use(message: str) -> ApiError:
    return ApiError("ResourceInUse", message)


def over_limit(message: str) -> ApiError:
    return ApiError("ResourceLimitExceeded", message)


def too_often(message: str) -> ApiError:
    """Return an error after which AWS's SDKs wait, sign the call again and repeat it."""
    return ApiError("ThrottlingException", message)
