"""How several hosts of our image come to know each other: by a key in a channel of its own, which fit() makes. Pure.

SageMaker gives a job's hosts names and a network, but no secret; all that a request says may be read by whoever may
describe the job. So the key is an object that the job's role reads, and the request says where it is (decision 013).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from herringbone.images.labels import REPOSITORY
from herringbone.planning.plan import JobPlan
from herringbone_contract.constants import DEFAULT_BASE, HostVariable

CHANNEL = "herringbone"
KEY_NAME = "key"
_VARIABLES = {
    HostVariable.CONTROL: "tcp::7590",
    HostVariable.KEY_FILE: f"{DEFAULT_BASE}/input/data/{CHANNEL}/{KEY_NAME}",
}
# An image that we built, and `images push` named: no other way shows offline what an image is.
_OURS = re.compile(rf"(?:.*/)?{REPOSITORY}/[^/]+")


def needs_key(plan: JobPlan) -> bool:
    """Say whether a job has several hosts whose supervisor is ours, and the user has not arranged their meeting."""
    image = plan.arguments.get("image_uri") or ""
    return (
        len(plan.hosts) > 1
        and _OURS.fullmatch(image) is not None
        and plan.options.container_entry_point is None
        and HostVariable.CONTROL not in plan.environment
    )


def variables(plan: JobPlan) -> dict[str, str]:
    """Return the user's environment, and what tells the hosts where to meet."""
    return {**plan.environment, **(_VARIABLES if needs_key(plan) else {})}


def key_channel(folder: str) -> dict[str, Any]:
    """Return the channel of the key, which lies in that folder: for every host, helpers too."""
    source = {"S3DataType": "S3Prefix", "S3Uri": folder, "S3DataDistributionType": "FullyReplicated"}
    # A file also where the data comes through pipes.
    return {"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}, "InputMode": "File"}


def is_ours(channel: str, environment: Mapping[str, str]) -> bool:
    """Say whether a channel of a described job is one that `key_channel` made."""
    return channel == CHANNEL and environment.get(HostVariable.KEY_FILE) == _VARIABLES[HostVariable.KEY_FILE]


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the user gave of an environment that `variables` made."""
    return {name: value for name, value in environment.items() if _VARIABLES.get(name) != value}
