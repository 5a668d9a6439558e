"""Give several hosts of a job a shared key, so that their supervisors trust each other. Pure.

SageMaker gives a job's hosts names and a network, but no secret: everybody who may describe the job can read all of its
request. So `fit` writes a key to S3, where only the job's role reads it. A channel of its own in the request brings the
key to the hosts (decision 013).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from herringbone.images.labels import REPOSITORY
from herringbone.plan.plan import JobPlan
from herringbone_contract.constants import DEFAULT_BASE, HostVariable

CHANNEL = "herringbone"
KEY_NAME = "key"
_VARIABLES = {
    HostVariable.CONTROL: "tcp::7590",
    HostVariable.KEY_FILE: f"{DEFAULT_BASE}/input/data/{CHANNEL}/{KEY_NAME}",
}
# The name that `images push` gives to Herringbone's images. Offline, nothing but the name tells them from others.
_HERRINGBONE_IMAGE = re.compile(rf"(?:.*/)?{REPOSITORY}/[^/]+")


def needs_key(plan: JobPlan) -> bool:
    """Return whether a job has several hosts that run our supervisor, and the user configured no rendezvous."""
    image = plan.arguments.image_uri or ""
    return (
        len(plan.hosts) > 1
        and _HERRINGBONE_IMAGE.fullmatch(image) is not None
        and plan.options.container_entry_point is None
        and HostVariable.CONTROL not in plan.environment
    )


def host_environment(plan: JobPlan) -> dict[str, str]:
    """Return the user's environment, and the variables with which the hosts find the rendezvous and its key."""
    return {**plan.environment, **(_VARIABLES if needs_key(plan) else {})}


def key_channel(folder: str) -> dict[str, Any]:
    """Return the channel that brings the key from an S3 folder to every host, helpers included."""
    source = {"S3DataType": "S3Prefix", "S3Uri": folder, "S3DataDistributionType": "FullyReplicated"}
    # Explicit, because the job's own input mode may be Pipe, and the supervisor reads the key as a file.
    return {"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}, "InputMode": "File"}


def is_key_channel(channel: str, environment: Mapping[str, str]) -> bool:
    """Return whether `key_channel` made a channel of a described job."""
    return channel == CHANNEL and environment.get(HostVariable.KEY_FILE) == _VARIABLES[HostVariable.KEY_FILE]


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's part of an environment that `host_environment` made."""
    return {name: value for name, value in environment.items() if _VARIABLES.get(name) != value}
