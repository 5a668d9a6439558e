"""Has machines remove what jobs left there, and tells what it was."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from herringbone.backends.ssh.agent.cleanup import Leftover
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.transport import Road
from herringbone_contract.errors import HostError, OptionError

# Unlinking a million files takes a while.
_CLEAN_SECONDS = 3600.0
_THREADS = 32
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


class Cleaned(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One machine: what went, or would; `runs` is the job that keeps the rest; with `trouble`, nobody answered."""

    name: str
    leftovers: list[Leftover] = []
    runs: str = ""
    trouble: str = ""


def clean(machines: Sequence[Machine], road: Road[Machine], *, older: float, dry: bool) -> list[Cleaned]:
    """Visit every machine and have it remove what is older than `older` seconds; with `dry`, have it only look."""
    message = {"ask": "clean", "older": older, "dry": dry, "client": f"{getpass.getuser()}@{platform.node()}"}

    def ask(machine: Machine) -> Cleaned:
        try:
            with road.visit(machine) as visit:
                answer = visit.ask(message, timeout=_CLEAN_SECONDS)
        except HostError as error:
            return Cleaned(name=machine.name, trouble=str(error))
        leftovers = msgspec.convert(answer["leftovers"], list[Leftover])
        return Cleaned(name=machine.name, leftovers=leftovers, runs=answer["runs"])

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(ask, machines))


def parse_age(text: str) -> float:
    """Return an age in seconds.

    >>> parse_age("30d"), parse_age("90m")
    (2592000.0, 5400.0)

    Raises `OptionError`.
    """
    match = re.fullmatch(r"([0-9]+)([mhd])", text)
    if match is None:
        raise OptionError(f"--older-than {text!r}: expected a number with m, h or d behind it, for example 30d")
    return int(match[1]) * _UNITS[match[2]]
