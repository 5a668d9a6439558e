"""The errors that the service answers with, under AWS's codes."""

from __future__ import annotations

from herringbone.s3.front.refusals import S3Error


class ApiError(S3Error):
    """One refused call of any service: AWS's code, a message for the caller, and the HTTP status.

    >>> ApiError("ValidationException", "MaxResults is 0").status
    400
    """


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
