"""The attempt of a job that runs now: its number, and its machines as the index stores them. Pure."""

from __future__ import annotations

import hmac
import json

import msgspec

from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.controller.retry import Attempt
from herringbone.records.index import JobRecord


class CurrentAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The column `service` of a job's row.

    `name` is the job's name on its machines in this attempt. `code_path` and `code_digest` are those of the code that
    all attempts run, None when the job was submitted elsewhere. `failed` are the attempts before this one.
    `log_begins` is the position, in bytes, of this attempt's first line in each host's log here, by host;
    `event_begins` is the same for the files of events, by their names. `members` are the machines that retry the job by
    themselves, by name; empty where a client does.
    """

    machines: dict[str, Machine]
    name: str
    code_path: str | None = None
    code_digest: str | None = None
    failed: tuple[Attempt, ...] = ()
    log_begins: dict[str, int] = msgspec.field(default_factory=dict, name="begins")
    event_begins: dict[str, int] = msgspec.field(default_factory=dict)
    members: dict[str, Machine] = msgspec.field(default_factory=dict)

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


def attempt_key(key: str, name: str) -> str:
    """Return the secret that supervisors of an attempt prove to each other; it says nothing of another attempt's.

    >>> attempt_key("00", "digits-1")[:8] == attempt_key("00", "digits-1.2")[:8]
    False
    """
    return hmac.digest(key.encode(), f"attempt\0{name}".encode(), "sha256").hex()
