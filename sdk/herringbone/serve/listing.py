"""Lists: their filters, their order and their pages. Pure.

A page's token names the last entry that was given, by the values of its order, so entries that come or go between two
calls shift nothing: an entry is given once, or it is new.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from herringbone.serve.errors import invalid

_TOKEN = msgspec.json.Decoder(tuple[str, str | float | int | None, str])


def page(
    entries: Iterable[Mapping[str, Any]],
    *,
    key: Callable[[Mapping[str, Any]], str | float | None],
    name: str,
    descending: bool,
    token: str | None,
    size: int,
    scope: str,
) -> tuple[list[Mapping[str, Any]], str | None]:
    """Return one page of the entries by `key` and by the member `name`, and the token of the next page.

    >>> entries = [{"Name": "b", "At": 1}, {"Name": "a", "At": 1}, {"Name": "c", "At": 0}]
    >>> first, token = page(entries, key=lambda entry: entry["At"], name="Name", descending=False, token=None, size=2,
    ...                     scope="ada")
    >>> [entry["Name"] for entry in first]
    ['c', 'a']

    `scope` says whose list it is, and how it is filtered and sorted: a token is valid for the same list alone. Raises
    `ApiError` for any other token.
    """

    def place(entry: Mapping[str, Any]) -> tuple[int, str | float, str]:
        return _place(key(entry), entry[name])

    ordered = sorted(entries, key=place, reverse=descending)
    if token is not None:
        last = _last(token, scope)
        ordered = [entry for entry in ordered if (place(entry) < last if descending else place(entry) > last)]
    chosen = ordered[:size]
    if len(ordered) <= size:
        return chosen, None
    document = (scope, key(chosen[-1]), chosen[-1][name])
    return chosen, base64.urlsafe_b64encode(msgspec.json.encode(document)).decode()


def _place(value: str | float | None, name: str) -> tuple[int, str | float, str]:
    # Values of several types cannot be compared: nothing comes first, then numbers, then texts.
    return (0, 0, name) if value is None else (2 if isinstance(value, str) else 1, value, name)


def _last(token: str, scope: str) -> tuple[int, str | float, str]:
    try:
        owner, value, name = _TOKEN.decode(base64.urlsafe_b64decode(token.encode()))
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise _wrong_token() from None
    if owner != scope:
        raise _wrong_token()
    return _place(value, name)


def _wrong_token() -> Exception:
    return invalid("NextToken: not a token of this list; begin again without one")


def listed(members: Mapping[str, Any], entry: Mapping[str, Any], kind: str = "TrainingJob") -> bool:
    """Report whether an entry passes the filters of ListTrainingJobs, or of another list of jobs.

    >>> listed({"StatusEquals": "Failed"}, {"TrainingJobStatus": "Completed"})
    False
    """
    text = members.get("NameContains")
    if text is not None and text.lower() not in entry[f"{kind}Name"].lower():
        return False
    if members.get("StatusEquals") not in (None, entry[f"{kind}Status"]):
        return False
    for member in ("CreationTime", "LastModifiedTime"):
        after, before = members.get(f"{member}After"), members.get(f"{member}Before")
        if after is not None and entry[member] <= after:
            return False
        if before is not None and entry[member] >= before:
            return False
    return True


def sorted_by(kind: str, choice: str) -> Callable[[Mapping[str, Any]], str | float | None]:
    """Return the key of an order of jobs of a kind: by Name, Status or CreationTime.

    >>> sorted_by("TrainingJob", "Name")({"TrainingJobName": "digits"})
    'digits'
    """
    member = choice if choice.endswith("Time") else f"{kind}{choice}"
    return lambda entry: entry[member]


_MEETS: Mapping[str, Callable[[Any, Any], bool]] = {
    "GreaterThan": lambda value, wanted: value > wanted,
    "GreaterThanOrEqualTo": lambda value, wanted: value >= wanted,
    "LessThan": lambda value, wanted: value < wanted,
    "LessThanOrEqualTo": lambda value, wanted: value <= wanted,
}


def found(expression: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> bool:
    """Report whether an entry meets a SearchExpression.

    >>> found({"Filters": [{"Name": "HyperParameters.lr", "Operator": "LessThan", "Value": "0.1"}]},
    ...       {"HyperParameters": {"lr": "0.01"}})
    True
    """
    if not expression:
        return True
    answers = [_meets(filter_, entry) for filter_ in expression.get("Filters", ())]
    answers += [found(inner, entry) for inner in expression.get("SubExpressions", ())]
    return any(answers) if expression.get("Operator") == "Or" and answers else all(answers)


def _meets(filter_: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    value = member(entry, filter_["Name"])
    wanted: str | None = filter_.get("Value")
    operator: str = filter_.get("Operator", "Equals" if wanted is not None else "Exists")
    if operator in ("Exists", "NotExists"):
        return (value is not None) == (operator == "Exists")
    if wanted is None:
        raise invalid(f"SearchExpression: {filter_['Name']} {operator} needs a Value")
    if operator == "NotEquals":
        return value is None or str(value) != wanted
    if value is None:
        return False
    if operator == "Equals":
        return str(value) == wanted
    if operator == "Contains":
        return wanted in str(value)
    if operator == "In":
        return str(value) in [word.strip() for word in wanted.split(",")]
    numbers = _numbers(value, wanted)
    return numbers is not None and _MEETS[operator](*numbers)


def member(entry: Mapping[str, Any], path: str) -> Any:
    """Return a member by its path, such as `Tags.owner`, `HyperParameters.lr` or `TrainingJobStatus`.

    >>> member({"Tags": [{"Key": "team", "Value": "a"}]}, "Tags.team")
    'a'
    """
    first, _, rest = path.partition(".")
    value = entry.get(first)
    if not rest or value is None:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        for names in (("Key", "Value"), ("MetricName", "Value")):
            for item in value:
                if isinstance(item, Mapping) and item.get(names[0]) == rest:
                    return item.get(names[1])
        return None
    if not isinstance(value, Mapping):
        return None
    # Names of hyperparameters may have dots.
    return value[rest] if rest in value else member(value, rest)


def _numbers(value: Any, wanted: str) -> tuple[float, float] | None:
    try:
        return float(value), float(wanted)
    except (TypeError, ValueError):
        return _times(value, wanted)


def _times(value: Any, wanted: str) -> tuple[float, float] | None:
    from datetime import datetime, timezone

    try:
        time = datetime.fromisoformat(wanted.replace("Z", "+00:00"))
        return float(value), (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
