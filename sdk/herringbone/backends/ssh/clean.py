"""Remove stale files on the machines of an inventory, and report what was removed."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from herringbone.backends.ssh.agent.cleanup import StaleFiles
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.transport.protocol import Transport
from herringbone_contract.errors import HostError

# Removing a million files takes a while.
_CLEAN_SECONDS = 3600.0
_THREADS = 32


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

    def ask(machine: Machine) -> CleanupReport:
        try:
            with transport.connect(machine) as connection:
                answer = connection.ask(message, timeout=_CLEAN_SECONDS)
        except HostError as error:
            return CleanupReport(name=machine.name, trouble=str(error))
        stale_files = msgspec.convert(answer["stale_files"], list[StaleFiles])
        return CleanupReport(name=machine.name, stale_files=stale_files, runs=answer["runs"])

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(ask, machines))
