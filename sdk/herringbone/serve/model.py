"""The operations that the service has, and botocore's own model of their shapes.

Requests are checked against the input shape: unknown members, types, lengths, patterns and listed values. Answers are
checked against the output shape, so that no client ever gets a member that its SDK does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from herringbone.aws.service_models import shared_loader
from herringbone.backends.sagemaker.service_model import violations_of
from herringbone.serve.errors import ApiError, invalid

# X-Amz-Target is PREFIX.Operation.
TARGETS = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}
OPERATIONS = {
    "sagemaker": (
        "CreateTrainingJob",
        "DescribeTrainingJob",
        "StopTrainingJob",
        "ListTrainingJobs",
        "DeleteTrainingJob",
        "UpdateTrainingJob",
        "CreateHyperParameterTuningJob",
        "DescribeHyperParameterTuningJob",
        "StopHyperParameterTuningJob",
        "ListHyperParameterTuningJobs",
        "ListTrainingJobsForHyperParameterTuningJob",
        "DeleteHyperParameterTuningJob",
        "AddTags",
        "ListTags",
        "DeleteTags",
        "Search",
    ),
    "logs": ("DescribeLogStreams", "GetLogEvents", "FilterLogEvents"),
}
# Operations whose signed request must not run a second time.
CHANGES = frozenset(
    {
        *("CreateTrainingJob", "StopTrainingJob", "DeleteTrainingJob", "UpdateTrainingJob", "AddTags", "DeleteTags"),
        *("CreateHyperParameterTuningJob", "StopHyperParameterTuningJob", "DeleteHyperParameterTuningJob"),
    }
)


@cache
def service_model(service: str) -> Any:
    """Return botocore's model of a service. Raises `UnsupportedError` where botocore is not installed."""
    loader = shared_loader()
    from botocore.model import ServiceModel

    return ServiceModel(loader.load_service_model(service, "service-2", api_version=None), service_name=service)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the members of a JSON request. Raises `ApiError` (SerializationException)."""
    try:
        members = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ApiError("SerializationException", f"the body is no JSON: {error}") from None
    if not isinstance(members, dict):
        raise ApiError("SerializationException", "the body must be a JSON object")
    return members


def find_operation(service: str, name: str) -> Any:
    """Return botocore's model of an operation.

    Raises `ApiError`: UnsupportedOperation for one that AWS has and this service has not, else UnknownOperation.
    """
    if name in OPERATIONS[service]:
        return service_model(service).operation_model(name)
    if name in service_model(service).operation_names:
        raise ApiError(
            "UnsupportedOperation",
            f"{name}: this service has no such operation; of {service} it has {', '.join(OPERATIONS[service])}",
        )
    raise ApiError("UnknownOperationException", f"{service} has no operation of this name")


def check_members(operation: Any, members: Mapping[str, Any]) -> None:
    """Raise `ApiError` (ValidationException) with everything that an operation's shape does not allow."""
    try:
        violations = violations_of(members, operation.input_shape)
    # Numbers that are no dates, for which botocore raises RuntimeError, and nesting that its validator does not expect.
    except (OverflowError, ValueError, OSError, RuntimeError, AttributeError) as error:
        raise invalid(f"the request has a value that fits no shape: {type(error).__name__}") from None
    if violations:
        raise invalid("; ".join(violations)[:4000])


def with_times(operation: Any, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members with times in seconds since 1970: JSON's clients send numbers, some of them texts."""
    from botocore.utils import parse_to_aware_datetime

    shapes = operation.input_shape.members
    return {
        name: parse_to_aware_datetime(value).timestamp() if shapes[name].type_name == "timestamp" else value
        for name, value in members.items()
    }


def check_answer(operation: Any, answer: Mapping[str, Any]) -> None:
    """Raise `ApiError` (InternalFailure) for an answer that is not of the operation's output shape."""
    if operation.output_shape is None:
        return
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(answer), operation.output_shape)
    if report.has_errors():
        raise ApiError("InternalFailure", f"an answer of {operation.name} is wrong: {report.generate_report()}", 500)
