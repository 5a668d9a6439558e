"""Evaluate IAM policies: the part of IAM's rules that the policies of infra/terraform need.

Source: "Policy evaluation logic" and "IAM JSON policy elements" in IAM's user guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def allows(policy: Mapping[str, Any], action: str, resource: str = "*", **context: str) -> bool:
    """Return whether a policy allows an action on a resource; an explicit Deny wins, and no match means no.

    >>> allows({"Statement": {"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}}, "s3:GetObject")
    True

    Context keys are keyword arguments with `__` for `:` and `_` for `-`: `s3__prefix="code/a"`. Raises `KeyError` for
    an operator that this module does not implement, so that no condition counts as met by accident.
    """
    context_values = {name.replace("__", ":").replace("_", "-").lower(): value for name, value in context.items()}
    effects = {
        statement["Effect"]
        for statement in _as_list(policy["Statement"])
        if any(_matches(pattern.lower(), action.lower()) for pattern in _as_list(statement["Action"]))
        and any(_matches(pattern, resource) for pattern in _as_list(statement.get("Resource", "*")))
        and _conditions_met(statement.get("Condition", {}), context_values)
    }
    return effects == {"Allow"}


_OPERATORS = {
    "StringEquals": lambda pattern, value: pattern == value,
    "StringLike": lambda pattern, value: _matches(pattern, value),
    "ArnEquals": lambda pattern, value: _matches(pattern, value),
    "ArnLike": lambda pattern, value: _matches(pattern, value),
    "Bool": lambda pattern, value: pattern.lower() == value.lower(),
}


def _conditions_met(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    return all(
        key.lower() in context
        and any(_OPERATORS[operator](pattern, context[key.lower()]) for pattern in _as_list(patterns))
        for operator, keys in conditions.items()
        for key, patterns in keys.items()
    )


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), value, re.DOTALL) is not None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
