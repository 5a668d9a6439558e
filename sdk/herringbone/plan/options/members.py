"""Walk over the members that `Options` names, in both directions. Pure.

options -- to_members --> CreateTrainingJob
DescribeTrainingJob, or a call of the service -- take_options --> options, and the members that are left
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from herringbone.aws.fields import Member, take
from herringbone.plan.options.typed import Options


def fields_of(struct: type[msgspec.Struct]) -> dict[str, Member]:
    """Return the members that the fields of a struct name."""
    return {
        field.name: part
        for field in msgspec.structs.fields(struct)
        for part in getattr(field.type, "__metadata__", ())
        if isinstance(part, Member)
    }


FIELDS = fields_of(Options)
MEMBERS = {option: field.path for option, field in FIELDS.items()}


def to_members(
    options: Mapping[str, Any], request: dict[str, Any] | None = None, *, fields: Mapping[str, Member] = FIELDS
) -> dict[str, Any]:
    """Return a request with the members of plain options added; options that no member carries are left out.

    >>> to_members({"max_run": 60, "disable_output_compression": True, "gpus": 1})
    {'StoppingCondition': {'MaxRuntimeInSeconds': 60}, 'OutputDataConfig': {'CompressionType': 'NONE'}}
    """
    request = {} if request is None else request
    for option, field in fields.items():
        value = options.get(option)
        if value is None or options.get(field.needs or option) is None:
            continue
        if (member := field.to(value)) is not None:
            place = request
            *path, name = field.path.split(".")
            for part in path:
                place = place.setdefault(part, {})
            place[name] = member
    return request


def take_options(rest: dict[str, Any], *, fields: Mapping[str, Member] = FIELDS) -> dict[str, Any]:
    """Remove the members that carry options, and return these; empty members set nothing.

    >>> take_options({"StoppingCondition": {"MaxRuntimeInSeconds": 60}, "VpcConfig": {}})
    {'max_run': 60}
    """
    taken = ((option, field, take(rest, *field.path.split("."))) for option, field in fields.items())
    options = {option: field.back(value) for option, field, value in taken if value is not None}
    return {name: value for name, value in options.items() if value is not None}
