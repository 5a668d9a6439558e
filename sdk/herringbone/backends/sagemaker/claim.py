"""Whose job it is that the service has under a name: what is known of a submission that was cut short. Pure.

A row with a `client` is a claim: that process is about to create the job, or died before it could say that it had.
A row without one is a job that was created.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from herringbone.jobs.index import JobRecord
from herringbone_contract.masking import is_mask


class Standing(enum.Enum):
    """What a row of the index is worth."""

    CREATED = "the service has the job"
    PREPARING = "the client is still at it"
    NEVER_SENT = "the client ended before it created the job"
    TAKEN = "the service has another job of that name"


def standing(record: JobRecord, described: Mapping[str, Any] | None, *, client_lives: bool) -> Standing:
    """Say what a row is worth, given what the service answers for its name (None: it knows no such job).

    >>> standing(record, None, client_lives=False)       # doctest: +SKIP
    <Standing.NEVER_SENT: 'the client ended before it created the job'>
    """
    if record.client is None:
        return Standing.CREATED
    if described is not None:
        request = record.plan_dict.get("request") or {}
        return Standing.TAKEN if differences(request, described) else Standing.CREATED
    return Standing.PREPARING if client_lives else Standing.NEVER_SENT


def differences(request: Mapping[str, Any], described: Mapping[str, Any]) -> list[str]:
    """Return the members in which a described job is not the one that was asked for.

    >>> differences({"HyperParameters": {"epochs": "3"}, "Tags": []}, {"HyperParameters": {"epochs": "4"}})
    ['HyperParameters.epochs']

    What the service adds is no difference, nor is what it does not describe (`Tags`), nor a masked value.
    """
    return [
        place for name in request if name in described for place in _differing(request[name], described[name], name)
    ]


def _differing(asked: Any, answer: Any, place: str) -> Iterator[str]:
    if isinstance(asked, Mapping) and isinstance(answer, Mapping):
        for name, value in asked.items():
            yield from _differing(value, answer.get(name), f"{place}.{name}")
    elif isinstance(asked, list) and isinstance(answer, list) and len(asked) == len(answer):
        for number, (one, other) in enumerate(zip(asked, answer, strict=True)):
            yield from _differing(one, other, f"{place}[{number}]")
    elif asked != answer and not is_mask(asked):
        yield place
