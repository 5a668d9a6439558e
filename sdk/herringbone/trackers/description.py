"""A job under the key names of SageMaker's DescribeTrainingJob, with what was sent to trackers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from herringbone.backends.facts import find_facts, find_service_facts
from herringbone.plan.budget import hourly_of
from herringbone.records.description import describe_own_job, describe_service_job, is_complete
from herringbone.trackers.place import with_exports

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend
    from herringbone.records.index import JobRecord


def describe_job(record: JobRecord, backend: Backend) -> dict[str, Any]:
    """Return the description of a job, as plain JSON values."""
    folder = backend.home.job(record.name)
    if is_complete(record):
        description = describe_service_job(record, find_service_facts(record, backend))
    else:
        description = describe_own_job(record, folder, find_facts(record, backend), now=time.time())
    if (cost := backend.cost(record)) is not None:
        members = {"Dollars": round(cost, 4), "DollarsPerHour": hourly_of(record.plan_dict)}
        members["MaxDollars"] = record.plan_dict.get("options", {}).get("max_cost")
        known = {name: value for name, value in members.items() if value is not None}
        description["Herringbone"] = {**description.get("Herringbone", {}), "Cost": known}
    return with_exports(description, folder)
