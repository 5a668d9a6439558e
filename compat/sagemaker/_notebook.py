"""The base of the estimators: SDK v2's habits on top of Herringbone's classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from herringbone import InstanceGroup

# The instance type of all jobs of these names, whatever the notebook says: its jobs then run there.
INSTANCE_TYPE_VARIABLE = "HERRINGBONE_INSTANCE_TYPE"


def adapted(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an estimator's keyword arguments with the instance type that the environment names.

    >>> adapted({"instance_type": "ml.p3.2xlarge"}, {"HERRINGBONE_INSTANCE_TYPE": "local_process"})
    {'instance_type': 'local_process'}
    """
    values = dict(options)
    chosen = environ.get(INSTANCE_TYPE_VARIABLE)
    if not chosen:
        return values
    groups = values.get("instance_groups")
    if groups:
        values["instance_groups"] = [
            InstanceGroup(group.instance_group_name, chosen, group.instance_count) for group in groups
        ]
    else:
        values["instance_type"] = chosen
    return values


class Notebook:
    """Adapts keyword arguments; the first base of each estimator here."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **adapted(options, os.environ))
