"""Which machine plays which host, as the index keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from herringbone.backends.ssh.inventory import Machine
from herringbone.jobs import JobRecord


def service_of(machines: Mapping[str, Machine]) -> str:
    """Return the column `service` of a job on these machines, by its hosts' names."""
    return json.dumps({"machines": {host: msgspec.to_builtins(machine) for host, machine in machines.items()}})


def machines_of(record: JobRecord) -> dict[str, Machine]:
    """Read back what `service_of` wrote."""
    assert record.service is not None, "a job that is still being submitted has no machines"
    return msgspec.convert(json.loads(record.service)["machines"], dict[str, Machine])
