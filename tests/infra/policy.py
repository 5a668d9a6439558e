"""What an IAM policy allows: the part of IAM's evaluation that the policies of infra/terraform need.

Source: "Policy evaluation logic" and "IAM JSON policy elements" in IAM's user guide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def allows(policy: Mapping[str, Any], action: str, resource: str = "*", **context: str) -> bool:
    """Whether a policy lets its holder do this; an explicit Deny wins, and silence is a no.

    >>> allows({"Statement": {"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}}, "s3:GetObject")
    True

    The context's keys are written with `__` for `:` and `_` for `-`: `s3__prefix="code/a"`. Raises `KeyError` for an
    operator that is not known here, so that no condition counts as met by accident.
    """
    given = {name.replace("__", ":").replace("_", "-").lower(): value for name, value in context.items()}
    effects = {
        statement["Effect"]
        for statement in _listed(policy["Statement"])
        if any(_like(pattern.lower(), action.lower()) for pattern in _listed(statement["Action"]))
        and any(_like(pattern, resource) for pattern in _listed(statement.get("Resource", "*")))
        and _met(statement.get("Condition", {}), given)
    }
    return effects == {"Allow"}


_OPERATORS = {
    "StringEquals": lambda pattern, value: pattern == value,
    "StringLike": lambda pattern, value: _like(pattern, value),
    "ArnEquals": lambda pattern, value: _like(pattern, value),
    "ArnLike": lambda pattern, value: _like(pattern, value),
    "Bool": lambda pattern, value: pattern.lower() == value.lower(),
}


def _met(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    return all(
        key.lower() in context
        and any(_OPERATORS[operator](pattern, context[key.lower()]) for pattern in _listed(patterns))
        for operator, keys in conditions.items()
        for key, patterns in keys.items()
    )


def _like(pattern: str, value: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), value, re.DOTALL) is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
