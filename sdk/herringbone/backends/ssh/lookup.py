"""Jobs that others submitted, found on the machines of an inventory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.running_jobs import found_elsewhere, split_attempt
from herringbone.backends.ssh.transport import Road
from herringbone.jobs.index import TRAINING, JobRecord
from herringbone_contract.errors import HostError

_THREADS = 32


def find_jobs(machines: Sequence[Machine], road: Road[Machine]) -> list[JobRecord]:
    """Return a row for each job that a machine knows, the newest first, as if it had been submitted here.

    How it stands is asked of the machines as for any other. Raises `HostError` when no machine answers.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        answers = list(pool.map(lambda machine: _ask(machine, road), machines))
    errors = [answer for answer in answers if isinstance(answer, HostError)]
    if len(errors) == len(machines):
        raise errors[0]
    found: dict[str, JobRecord] = {}
    newest: dict[str, int] = {}
    reached = {machine.name: machine for machine in machines}
    for answer in answers:
        for job in [] if isinstance(answer, HostError) else answer:
            record = _row(job, reached)
            _, number = split_attempt(job["row"]["name"])
            if record is not None and number > newest.get(record.name, 0):
                found[record.name], newest[record.name] = record, number
    return sorted(found.values(), key=lambda record: record.created, reverse=True)


def _ask(machine: Machine, road: Road[Machine]) -> list[dict[str, Any]] | HostError:
    try:
        with road.visit(machine) as visit:
            jobs: list[dict[str, Any]] = visit.ask({"ask": "jobs"})["jobs"]
            return jobs
    except HostError as error:
        return error


def _row(job: dict[str, Any], reached: dict[str, Machine]) -> JobRecord | None:
    """Return the row of a job; None where the inventory has not all of its machines.

    The way to a machine is what the inventory here says, not what was true where the job was submitted.
    """
    submitted = msgspec.convert(job["machines"], dict[str, Machine])
    if any(machine.name not in reached for machine in submitted.values()):
        return None
    row = job["row"]
    name, _ = split_attempt(row["name"])
    machines = {host: reached[machine.name] for host, machine in submitted.items()}
    return JobRecord(
        name=name,
        backend="ssh",
        plan=json.dumps({**json.loads(row["plan"]), "job_name": name}),
        secondary_status=TRAINING,
        created=row["created"],
        started=row["started"],
        service=found_elsewhere(row["name"], machines).to_json(),
    )
