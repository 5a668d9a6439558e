"""Which machine plays which host in a job's present attempt, and what became of those before, as the index keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from herringbone.backends.ssh.inventory import Machine
from herringbone.controller.retry import Attempt
from herringbone.jobs.index import JobRecord


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """A job's column `service`.

    `name` is what machines call the job in this attempt. `code_path` and `code_digest` are of what all attempts run,
    None where it was submitted elsewhere. `failed` are the attempts before this one; `begins` says where in a host's
    log here this one's begins, in bytes.
    """

    machines: dict[str, Machine]
    name: str
    code_path: str | None = None
    code_digest: str | None = None
    failed: tuple[Attempt, ...] = ()
    begins: dict[str, int] = {}

    @property
    def places(self) -> dict[str, str]:
        """The machines' names by their hosts'."""
        return {host: machine.name for host, machine in self.machines.items()}

    def to_json(self) -> str:
        return json.dumps(msgspec.to_builtins(self))


def attempt_name(job: str, number: int) -> str:
    """Return what machines call a job in an attempt: a dot is in no job's name.

    >>> attempt_name("digits-1", 1), attempt_name("digits-1", 2)
    ('digits-1', 'digits-1.2')
    """
    return job if number == 1 else f"{job}.{number}"


def split_attempt(name: str) -> tuple[str, int]:
    """Return the job and the number of the attempt.

    >>> split_attempt("digits-1"), split_attempt("digits-1.12")
    (('digits-1', 1), ('digits-1', 12))
    """
    job, _, number = name.partition(".")
    return job, int(number or 1)


def found_elsewhere(name: str, machines: Mapping[str, Machine]) -> Registered:
    """Return the registration of a job by what its machines call it: of earlier attempts, only the number is known."""
    _, number = split_attempt(name)
    failed = tuple(Attempt(earlier, {}) for earlier in range(1, number))
    return Registered(machines=dict(machines), name=name, failed=failed)


def registered(record: JobRecord) -> Registered:
    """Read back what `Registered.to_json` wrote."""
    assert record.service is not None, "a job that is still being submitted has no machines"
    return msgspec.convert(json.loads(record.service), Registered)
