"""The objects of a job's next attempt, from its ConfigMap and the Secret of an attempt before. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from herringbone.backends.kubernetes.files import resource_files
from herringbone.backends.kubernetes.ledger import Ledger
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.backends.kubernetes.objects import PRIVATE, attempt_objects
from herringbone.backends.kubernetes.pods import PodContext
from herringbone.controller.retry import excluded_machines
from herringbone.plan.plan import JobPlan, parse_plan
from herringbone_contract.constants import DEFAULT_HEARTBEAT_SECONDS, HostVariable

# A supervisor kills its ranks, and packs up.
_ENDING_SECONDS = 10.0


def current_plan(plan: JobPlan, ledger: Ledger) -> JobPlan:
    """Return the plan of an attempt, with its hosts."""
    return msgspec.structs.replace(plan, hosts=plan.hosts[: ledger.hosts])


def context_of(stored: Mapping[str, Any], ledger: Ledger) -> PodContext:
    """Return the values of an attempt's pods; `stored` is the job's ConfigMap."""
    metadata, data = stored["metadata"], stored["data"]
    return PodContext(
        names=ObjectNames(data["job"], ledger.attempt),
        namespace=metadata["namespace"],
        owner=metadata["uid"],
        excluded=tuple(excluded_machines(ledger.failed)),
        spent=ledger.spent,
        **json.loads(data["context"]),
    )


def silence_of(context: PodContext) -> float:
    """Return the seconds after which a host has ended by itself that hears no other one: three heartbeats, and more."""
    return 3 * float(context.passed_on.get(HostVariable.HEARTBEAT, DEFAULT_HEARTBEAT_SECONDS)) + _ENDING_SECONDS


def next_objects(
    stored: Mapping[str, Any], ledger: Ledger, secret: Mapping[str, str], key: bytes
) -> list[dict[str, Any]]:
    """Return the objects of an attempt, with a new key; `secret` has the files of an older one, in base64."""
    plan = current_plan(parse_plan(json.loads(stored["data"]["plan"])), ledger)
    files = {name: base64.b64decode(content) for name, content in secret.items()}
    private = json.loads(files[PRIVATE]) | {"key": key.hex()}
    files |= {PRIVATE: json.dumps(private).encode() + b"\n", **resource_files(plan)}
    return attempt_objects(plan, context_of(stored, ledger), files)
