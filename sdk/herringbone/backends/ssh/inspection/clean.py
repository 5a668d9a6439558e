"""Remove stale files on the machines of an inventory, and report what was removed."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Sequence

import msgspec

from herringbone.backends.ssh.agent.cleanup import StaleFiles
from herringbone.backends.ssh.agent.messages import Message
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.protocol import Transport, ask_each
from herringbone_contract.errors import HostError

# Removing a million files takes a while.
_CLEAN_SECONDS = 3600.0


class CleanupReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The files that were, or would be, removed on one machine.

    `runs` is the job that has the machine, so that shared files stay. `trouble` says why the machine did not answer.
    """

    name: str
    # "leftovers" is the key in the output of `herringbone hosts clean --json`.
    stale_files: list[StaleFiles] = msgspec.field(default_factory=list, name="leftovers")
    runs: str = ""
    trouble: str = ""


def clean(
    machines: Sequence[Machine], transport: Transport[Machine], *, older: float, dry: bool
) -> list[CleanupReport]:
    """Make every machine remove what is older than `older` seconds; with `dry`, only report it."""
    message = {"ask": "clean", "older": older, "dry": dry, "client": f"{getpass.getuser()}@{platform.node()}"}
    answers = ask_each(transport, machines, message, timeout=_CLEAN_SECONDS)
    return [_report(machine.name, answer) for machine, answer in zip(machines, answers, strict=True)]


def _report(machine: str, answer: Message | HostError) -> CleanupReport:
    if isinstance(answer, HostError):
        return CleanupReport(name=machine, trouble=str(answer))
    stale_files = msgspec.convert(answer["stale_files"], list[StaleFiles])
    return CleanupReport(name=machine, stale_files=stale_files, runs=answer["runs"])
