"""botocore's own model of the shapes of the actions that the service has.

Requests are checked against the input shape: unknown members, types, lengths, patterns and listed values. Answers are
checked against the output shape, so that no client ever gets a member that its SDK does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from herringbone.aws.service_models import shared_loader
from herringbone.backends.sagemaker.service_model import violations_of
from herringbone.serve.actions import ACTIONS, not_served
from herringbone.serve.errors import ApiError, invalid

# botocore's name of a service whose name in signatures differs.
_NAMES = {"monitoring": "cloudwatch"}


@cache
def service_model(service: str) -> Any:
    """Return botocore's model of a service. Raises `UnsupportedError` where botocore is not installed."""
    loader = shared_loader()
    from botocore.model import ServiceModel

    name = _NAMES.get(service, service)
    return ServiceModel(loader.load_service_model(name, "service-2", api_version=None), service_name=name)


def find_operation(service: str, name: str, *, refusal: str = "UnsupportedOperation") -> Any:
    """Return botocore's model of an operation.

    Raises `ApiError`: `refusal` for one that AWS has and this service has not, else UnknownOperation.
    """
    if name in ACTIONS and ACTIONS[name].service == service:
        return service_model(service).operation_model(name)
    if name in service_model(service).operation_names:
        raise not_served(refusal, service, name)
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
    """Return the members with times in seconds since 1970: JSON's clients send numbers, some of them texts.

    Raises `ApiError` (ValidationException) for a boolean, which Python takes for a number, and a time before 1970.
    """
    from botocore.utils import parse_to_aware_datetime

    shapes, times = operation.input_shape.members, {}
    for name, value in members.items():
        if shapes[name].type_name == "timestamp":
            times[name] = -1.0 if isinstance(value, bool) else parse_to_aware_datetime(value).timestamp()
            if times[name] < 0:
                raise invalid(f"{name}: {value!a} is no time since 1970")
    return {**members, **times}


def check_answer(operation: Any, answer: Mapping[str, Any]) -> None:
    """Raise `ApiError` (InternalFailure) for an answer that is not of the operation's output shape."""
    if operation.output_shape is None:
        return
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(answer), operation.output_shape)
    if report.has_errors():
        raise ApiError("InternalFailure", f"an answer of {operation.name} is wrong: {report.generate_report()}", 500)
