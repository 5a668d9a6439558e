"""The service's own model of CreateTrainingJob, which comes with botocore: what it would refuse, found here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from herringbone.aws.service_models import shared_loader
from herringbone_contract.errors import OptionError


def check_request(request: Mapping[str, Any], loader: Any = None) -> None:
    """Raise one `OptionError` with everything that the service's model does not allow in a request.

    >>> check_request({"TrainingJobName": "digits-1"})       # doctest: +SKIP
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: CreateTrainingJob would refuse this request:
      Missing required parameter in input: "RoleArn"

    Names, types, what is required, lengths, ranges, patterns and listed values. `loader` is botocore's reader of
    models where a session has one. Raises `UnsupportedError` where botocore is not installed.
    """
    shape = _input_shape(shared_loader() if loader is None else loader)
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(request), shape)
    found: list[str] = report.generate_report().splitlines() if report.has_errors() else []
    # botocore checks no upper limits, no patterns and no listed values, though its model has them.
    found += _limits_broken(request, shape, "")
    if found:
        raise OptionError("CreateTrainingJob would refuse this request:\n  " + "\n  ".join(found))


def _input_shape(loader: Any) -> Any:
    from botocore.model import ServiceModel

    # Asked for in the words of botocore's clients, so that theirs finds it in the loader's memory.
    model = loader.load_service_model("sagemaker", "service-2", api_version=None)
    return ServiceModel(model).operation_model("CreateTrainingJob").input_shape


def _limits_broken(value: Any, shape: Any, place: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for name, member in value.items():
            if name in shape.members:
                yield from _limits_broken(member, shape.members[name], f"{place}.{name}" if place else name)
    elif shape.type_name == "list" and isinstance(value, (list, tuple)):
        yield from _too_many(value, shape, place, "entries")
        for number, member in enumerate(value):
            yield from _limits_broken(member, shape.member, f"{place}[{number}]")
    elif shape.type_name == "map" and isinstance(value, Mapping):
        yield from _too_many(value, shape, place, "entries")
        for name, member in value.items():
            yield from _limits_broken(name, shape.key, f"name {name!r} in {place}")
            yield from _limits_broken(member, shape.value, f"{place}.{name}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _too_many(value, shape, place, "characters")
        yield from _not_listed(value, shape, place)
        yield from _unlike_pattern(value, shape, place)
    elif shape.type_name in ("integer", "long") and isinstance(value, int):
        limit = shape.metadata.get("max")
        if limit is not None and value > limit:
            yield f"{place} is {value}; the service takes at most {limit}"


def _too_many(value: Any, shape: Any, place: str, what: str) -> Iterator[str]:
    limit = shape.metadata.get("max")
    if limit is not None and len(value) > limit:
        yield f"{place} has {len(value)} {what}; the service takes {limit}"


def _not_listed(value: str, shape: Any, place: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        near = difflib.get_close_matches(value, shape.enum, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = f"the {len(shape.enum)} that this botocore knows (update it for newer ones)"
        yield f"{place} {value!r} is not among {known}{hint}"


def _unlike_pattern(value: str, shape: Any, place: str) -> Iterator[str]:
    pattern = shape.metadata.get("pattern")
    # \p{...} is Java's: those few patterns are left to the service. `.*` there spans lines.
    if pattern is None or r"\p{" in pattern:
        return
    if not re.fullmatch(pattern, value, re.DOTALL):
        # Not the value: it may be secret.
        yield f"{place} does not match the service's pattern {pattern}"
