"""The members of CreateTrainingJob that carry options; a row of `plan.options.typed` names its own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Conversions = dict[str, Callable[[Any], Any]]


def tag_list(tags: Any) -> list[dict[str, str]]:
    """Return tags as SageMaker takes them; [] for None.

    >>> tag_list({"team": "vision"})
    [{'Key': 'team', 'Value': 'vision'}]
    """
    if isinstance(tags, Mapping):
        return [{"Key": key, "Value": value} for key, value in tags.items()]
    return [dict(tag) for tag in tags or ()]


def _same(value: Any) -> Any:
    return value


def _renamed(names: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return a function that gives the keys of an object, or of each object of a list, other names."""

    def rename(value: Any) -> Any:
        if isinstance(value, list):
            return [rename(each) for each in value]
        return {names.get(key, key): each for key, each in value.items() if each is not None}

    return rename


def structs(**names: str) -> Conversions:
    """Return `to` and `back` of an option whose value is an object, or a list of objects, with these keys."""
    return {"to": _renamed(names), "back": _renamed({member: name for name, member in names.items()})}


# SageMaker describes no tags; ListTags has them.
TAGS: Conversions = {"to": lambda tags: tag_list(tags) or None}
# SageMaker describes the default of some members as the text "None".
NONE_IS_UNSET: Conversions = {"back": lambda text: None if text == "None" else text}
# Taken back in any case: otherwise the default, GZIP, would count as a member that no option has.
UNCOMPRESSED: Conversions = {"to": lambda _: "NONE", "back": lambda text: text == "NONE" or None}


@dataclass(frozen=True, slots=True)
class Member:
    """The member that carries an option: an annotation of the option's type.

    `path` leads to the member. `to` and `back` make a plain value of the one to a value of the other; None leaves it
    out. `needs` is an option without which this one has no effect: SageMaker requires both members, or has the second
    inside the first. `alone` says that no other backend uses the option, since it costs money, chooses machines or
    names accounts: without it, a job on own hosts runs just the same.
    """

    path: str
    to: Callable[[Any], Any] = _same
    back: Callable[[Any], Any] = _same
    needs: str = ""
    alone: bool = False


def plain_type(hint: Any) -> Any:
    """Return the type of a field without its member.

    >>> from typing import Annotated
    >>> plain_type(Annotated[str, Member("RoleArn")]), plain_type(int)
    (<class 'str'>, <class 'int'>)
    """
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def take(rest: dict[str, Any], *path: str) -> Any:
    """Remove and return a member; None where it is missing or empty."""
    for name in path[:-1]:
        rest = rest.get(name) or {}
    value = rest.pop(path[-1], None)
    # SageMaker describes some members that were not in the request as empty ones.
    return None if value in ("", [], {}) else value
