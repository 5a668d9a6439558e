"""`extra_request`: what the user adds to a request by the service's own names, and never in place of an option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone_contract.errors import OptionError


def merge(request: Mapping[str, Any], extra: Mapping[str, Any], *, place: str = "") -> dict[str, Any]:
    """Return the request with `extra` put into it, objects member by member.

    >>> merge({"ResourceConfig": {"InstanceCount": 1}}, {"ResourceConfig": {"SelectedInstanceCount": 1}})
    {'ResourceConfig': {'InstanceCount': 1, 'SelectedInstanceCount': 1}}

    Raises `OptionError` for a member that the request already has with another value.
    """
    merged = dict(request)
    for name, value in extra.items():
        here = f"{place}.{name}" if place else str(name)
        there = request.get(name)
        if name not in request or there == value:
            merged[name] = value
        elif isinstance(there, Mapping) and isinstance(value, Mapping):
            merged[name] = merge(there, value, place=here)
        else:
            # No values in the message: a part of the request may be secret.
            raise OptionError(
                f"extra_request: {here} is in the request already, with another value, from the estimator's own "
                "options; change the option, or leave the member out of extra_request"
            )
    return merged
