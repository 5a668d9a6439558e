"""Find the jobs of an inventory's machines, whoever submitted them.

A job that was submitted elsewhere is in no index here; `find_jobs` makes a row for it from its machines' rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herringbone.backends.ssh.attempts.current import CurrentAttempt, split_attempt
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone.controller.retry import Attempt
from herringbone.records.index import TRAINING, JobRecord
from herringbone_contract.errors import HostError


def find_jobs(machines: Sequence[Machine], transport: Transport[Machine]) -> list[JobRecord]:
    """Return a row for each job that a machine knows, the newest first, as if it had been submitted here.

    `describe` then asks the machines for the present state, as for every job. Raises `HostError` when no machine
    answers.
    """
    answers = ask_each(transport, machines, {"ask": "jobs"})
    errors = [answer for answer in answers if isinstance(answer, HostError)]
    if len(errors) == len(machines):
        raise errors[0]
    records: dict[str, JobRecord] = {}
    newest: dict[str, int] = {}
    reached = {machine.name: machine for machine in machines}
    for answer in answers:
        for job in [] if isinstance(answer, HostError) else answer["jobs"]:
            record = _row(job, reached)
            _, number = split_attempt(job["row"]["name"])
            # Machines keep the folders of earlier attempts, too.
            if record is not None and number > newest.get(record.name, 0):
                records[record.name], newest[record.name] = record, number
    return sorted(records.values(), key=lambda record: record.created, reverse=True)


def _row(job: dict[str, Any], reached: dict[str, Machine]) -> JobRecord | None:
    """Return the row of a job; None when the inventory does not have all of its machines."""
    submitted = msgspec.convert(job["machines"], dict[str, Machine])
    members = job.get("members", ())
    if any(name not in reached for name in [*(machine.name for machine in submitted.values()), *members]):
        return None
    row = job["row"]
    name, _ = split_attempt(row["name"])
    # The settings of this inventory, and not of the submitter's: addresses and users may differ from here.
    machines = {host: reached[machine.name] for host, machine in submitted.items()}
    return JobRecord(
        name=name,
        backend="ssh",
        plan=json.dumps({**json.loads(row["plan"]), "job_name": name}),
        secondary_status=TRAINING,
        created=row["created"],
        started=row["started"],
        service=_attempt_elsewhere(row["name"], machines, {name: reached[name] for name in members}).to_json(),
    )


def _attempt_elsewhere(name: str, machines: Mapping[str, Machine], members: dict[str, Machine]) -> CurrentAttempt:
    """Return the attempt with a name on machines; of earlier attempts only the number is known."""
    _, number = split_attempt(name)
    failed = tuple(Attempt(earlier, {}) for earlier in range(1, number))
    return CurrentAttempt(machines=dict(machines), name=name, failed=failed, members=members)
