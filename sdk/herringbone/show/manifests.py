"""Objects of Kubernetes as the YAML that kubectl takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml


def as_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents.

    >>> print(as_yaml([{"kind": "Service", "metadata": {"name": "a"}}, {"kind": "Job"}]), end="")
    kind: Service
    metadata:
      name: a
    ---
    kind: Job
    """
    # A copy in which no two members are one object: YAML would write references.
    text: str = yaml.safe_dump_all(json.loads(json.dumps(objects)), sort_keys=False, width=120)
    return text


def manifest_lines(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of objects; of several alike, such as the Jobs of the hosts, only the first one and a remark."""
    shown: list[Mapping[str, Any]] = []
    alike = 0
    for each in objects:
        if shown and shown[-1]["kind"] == each["kind"] and shown[-1]["spec"].keys() == each["spec"].keys():
            alike += 1
        else:
            shown.append(each)
    remark = [f"# and {alike} more like the last one, a {shown[-1]['kind']} for each host"] if alike else []
    return [*as_yaml(shown).splitlines(), *remark]
