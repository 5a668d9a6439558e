"""The attempt of a job that runs now: its machines as the index stores them, and jobs that machines report.

A job that was submitted elsewhere is in no index here; `find_jobs` makes a row for it from its machines' rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone.controller.retry import Attempt
from herringbone.records.index import TRAINING, JobRecord
from herringbone_contract.errors import HostError


class CurrentAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The column `service` of a job's row.

    `name` is the job's name on its machines in this attempt. `code_path` and `code_digest` are those of the code that
    all attempts run, None when the job was submitted elsewhere. `failed` are the attempts before this one.
    `log_begins` is the position, in bytes, of this attempt's first line in each host's log here, by host;
    `event_begins` is the same for the files of events, by their names.
    """

    machines: dict[str, Machine]
    name: str
    code_path: str | None = None
    code_digest: str | None = None
    failed: tuple[Attempt, ...] = ()
    log_begins: dict[str, int] = msgspec.field(default_factory=dict, name="begins")
    event_begins: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def machine_names(self) -> dict[str, str]:
        """Return the name of each host's machine."""
        return {host: machine.name for host, machine in self.machines.items()}

    @property
    def file_begins(self) -> dict[str, int]:
        """Return the position of this attempt's first byte in each file here, by the file's name."""
        return {**{f"{host}.log": begin for host, begin in self.log_begins.items()}, **self.event_begins}

    def to_json(self) -> str:
        """Return the content of the column."""
        return json.dumps(msgspec.to_builtins(self))


def current_attempt(record: JobRecord) -> CurrentAttempt:
    """Read what `CurrentAttempt.to_json` wrote."""
    assert record.service is not None, "a job that is still being submitted has no machines"
    return msgspec.convert(json.loads(record.service), CurrentAttempt)


def attempt_name(job: str, number: int) -> str:
    """Return a job's name on its machines in an attempt.

    >>> attempt_name("digits-1", 1), attempt_name("digits-1", 2)
    ('digits-1', 'digits-1.2')
    """
    # A dot is in no job's name, so no other job can have this one.
    return job if number == 1 else f"{job}.{number}"


def split_attempt(name: str) -> tuple[str, int]:
    """Return the job and the number of the attempt.

    >>> split_attempt("digits-1"), split_attempt("digits-1.12")
    (('digits-1', 1), ('digits-1', 12))
    """
    job, _, number = name.partition(".")
    return job, int(number or 1)


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
    if any(machine.name not in reached for machine in submitted.values()):
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
        service=_attempt_elsewhere(row["name"], machines).to_json(),
    )


def _attempt_elsewhere(name: str, machines: Mapping[str, Machine]) -> CurrentAttempt:
    """Return the attempt with a name on machines; of earlier attempts only the number is known."""
    _, number = split_attempt(name)
    failed = tuple(Attempt(earlier, {}) for earlier in range(1, number))
    return CurrentAttempt(machines=dict(machines), name=name, failed=failed)
