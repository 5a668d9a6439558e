"""Check a request against SageMaker's own model of the operation, which comes with botocore."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from herringbone.aws.service_models import shared_loader
from herringbone_contract.errors import OptionError, near_words


def check_request(request: Mapping[str, Any], loader: Any = None, *, operation: str = "CreateTrainingJob") -> None:
    """Raise one `OptionError` that lists everything in a request that the service model does not allow.

    >>> check_request({"TrainingJobName": "digits-1"})       # doctest: +SKIP
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: CreateTrainingJob would refuse this request:
      Missing required parameter in input: "RoleArn"

    Checks names, types, required members, lengths, ranges, patterns and listed values. `loader` is a session's own
    loader of service models. Raises `UnsupportedError` where botocore is not installed.
    """
    shape = _input_shape(shared_loader() if loader is None else loader, operation)
    if violations := violations_of(request, shape):
        raise OptionError(f"{operation} would refuse this request:\n  " + "\n  ".join(violations))


def violations_of(request: Mapping[str, Any], shape: Any) -> list[str]:
    """Return everything in a request that an input shape of botocore's does not allow, one text each."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(request), shape)
    violations: list[str] = report.generate_report().splitlines() if report.has_errors() else []
    # botocore's validator ignores upper limits, patterns and listed values, although the model contains them.
    return [*violations, *_violations(request, shape, "")]


def _input_shape(loader: Any, operation: str) -> Any:
    from botocore.model import ServiceModel

    # These are the arguments that botocore's clients pass. The loader caches by arguments, so a client made later
    # reuses this model.
    model = loader.load_service_model("sagemaker", "service-2", api_version=None)
    return ServiceModel(model).operation_model(operation).input_shape


def _violations(value: Any, shape: Any, path: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for name, member in value.items():
            if name in shape.members:
                yield from _violations(member, shape.members[name], f"{path}.{name}" if path else name)
    elif shape.type_name == "list" and isinstance(value, (list, tuple)):
        yield from _too_many(value, shape, path, "entries")
        for number, member in enumerate(value):
            yield from _violations(member, shape.member, f"{path}[{number}]")
    elif shape.type_name == "map" and isinstance(value, Mapping):
        yield from _too_many(value, shape, path, "entries")
        for name, member in value.items():
            yield from _violations(name, shape.key, f"name {name!r} in {path}")
            yield from _violations(member, shape.value, f"{path}.{name}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _too_many(value, shape, path, "characters")
        yield from _unlisted_value(value, shape, path)
        yield from _pattern_mismatch(value, shape, path)
    elif shape.type_name in ("integer", "long") and isinstance(value, int):
        limit = shape.metadata.get("max")
        if limit is not None and value > limit:
            yield f"{path} is {value}; the service takes at most {limit}"


def _too_many(value: Any, shape: Any, path: str, unit: str) -> Iterator[str]:
    limit = shape.metadata.get("max")
    if limit is not None and len(value) > limit:
        yield f"{path} has {len(value)} {unit}; the service takes {limit}"


def _unlisted_value(value: str, shape: Any, path: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        similar = near_words(value, shape.enum)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        known = f"the {len(shape.enum)} that this botocore knows (update it for newer ones)"
        yield f"{path} {value!r} is not among {known}{hint}"


def _pattern_mismatch(value: str, shape: Any, path: str) -> Iterator[str]:
    pattern = shape.metadata.get("pattern")
    # Python's `re` does not know Java's \p{...}; SageMaker checks those few patterns itself.
    if pattern is None or r"\p{" in pattern:
        return
    # DOTALL, because `.*` in the service's patterns spans lines.
    if not re.fullmatch(pattern, value, re.DOTALL):
        # The message omits the value, which may be secret.
        yield f"{path} does not match the service's pattern {pattern}"
