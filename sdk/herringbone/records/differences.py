"""The settings in which jobs differ: hyperparameters, options, hosts, code, image and versions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herringbone.plan.plan import parse_plan
from herringbone.plan.request import request_of
from herringbone.plan.shown import is_internal
from herringbone.system.texts import NONE
from herringbone_contract.errors import InputError

# Members of a stored plan that are settings of the user's, as they are.
_MEMBERS = ("estimator", "distribution", "source")
# A job's own facts, with the name of a setting.
_FACTS = {"Image": "image", "ImageId": "image_id", "Code": "code", "Versions": "version"}


def settings_of(plan: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings of a job by name; `plan` is the one of its row, `facts` are those that `describe` shows.

    >>> settings_of({"hyperparameters": {"lr": "0.1"}, "options": {"max_run": 60}}, {"Code": {"Commit": "1a2b"}})
    {'lr': '0.1', 'options.max_run': '60', 'code.commit': '1a2b'}

    A hyperparameter has its own name. Those that Herringbone makes follow from other settings.
    """
    values = plan.get("hyperparameters") or {}
    settings = {_own_name(name): _plain(text) for name, text in values.items() if not is_internal(name)}
    if hosts := plan.get("hosts"):
        types = dict.fromkeys(str(host.get("instance_type")) for host in hosts)
        settings |= {"instance_type": ", ".join(types), "instance_count": str(len(hosts))}
    for channel in plan.get("channels") or ():
        given = {**(channel.get("input") or {}), **({"s3_data": channel["path"]} if channel.get("path") else {})}
        settings |= _flat(f"channel.{channel.get('name')}", given)
    for name in _MEMBERS:
        settings |= _flat(name, plan.get(name))
    settings |= _flat("options", _options(plan))
    for member, name in _FACTS.items():
        settings |= _flat(name, facts.get(member))
    return settings


def differences(jobs: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return a row for each setting in which jobs differ: its name, and its value in each job.

    >>> differences([{"lr": "0.1", "epochs": "3"}, {"lr": "0.2", "epochs": "3", "options.max_run": "60"}])
    [('lr', '0.1', '0.2'), ('options.max_run', '-', '60')]
    """
    rows = [
        (name, *(job.get(name, NONE) for job in jobs)) for name in dict.fromkeys(name for job in jobs for name in job)
    ]
    return [row for row in rows if len(set(row[1:])) > 1]


def _options(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with absolute paths, as another job of the same request would have them."""
    try:
        options: Mapping[str, Any] = request_of(parse_plan(plan)).to_dict().get("options", {})
    except InputError:
        # Of another release.
        options = plan.get("options") or {}
    # The source has these two.
    return {name: value for name, value in options.items() if name not in ("dependencies", "include_secrets")}


def _own_name(hyperparameter: str) -> str:
    """Return the name of a hyperparameter, which is another one than that of each other setting."""
    first = hyperparameter.partition(".")[0]
    taken = first in (*_MEMBERS, *_FACTS.values(), "options", "channel", "instance_type", "instance_count")
    return f"hyperparameters.{hyperparameter}" if taken else hyperparameter


def _flat(name: str, value: Any) -> dict[str, str]:
    return dict(_leaves(name, value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(f"{name}.{str(key).lower() if name in _FACTS.values() else key}", member)
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _plain(text: str) -> str:
    """Return a hyperparameter as the user wrote it: texts are stored as JSON."""
    try:
        decoded = json.loads(text)
    except ValueError:
        return text
    return decoded if isinstance(decoded, str) else text
