"""The inventory: which machines there are, how ssh reaches each, and what each is for. Pure.

user: me                          # settings for all machines; each machine may have its own
work_folder: /scratch/herringbone
shared: [/nfs/data]               # folders that every machine sees at the same path
hosts:
  - gpu-1                         # a name that ssh knows is enough
  - {name: gpu-2, host: 10.0.0.2, port: 2222, gpus: 8, labels: [a100]}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

from herringbone_contract.errors import InputError
from herringbone_contract.resources import natural_order

Runtime = Literal["process", "docker"]
# None of these words may be taken for an option, or mean anything to a shell: ssh hands its command to one.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PATH = re.compile(r"(~/|/)?[A-Za-z0-9_.][A-Za-z0-9_./+@=-]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine of an inventory.

    `host` is what ssh is given, by default the name; `address` is how the other machines reach it, by default the
    address that ssh came to, or that of `interface`. `work_folder` holds all that jobs keep there, `python` is what
    ranks' packages are installed for. `gpus` is how many there should be, None where nobody said.
    """

    name: str
    host: str = ""
    user: str | None = None
    port: int | None = None
    address: str | None = None
    interface: str | None = None
    gpus: int | None = None
    labels: tuple[str, ...] = ()
    work_folder: str = "~/.herringbone/host"
    python: str = "python3"
    runtime: Runtime = "process"

    @property
    def destination(self) -> str:
        """What ssh is given."""
        return self.host or self.name


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Machines in natural order (`gpu-2` before `gpu-10`), and the folders that all of them and this machine share."""

    machines: tuple[Machine, ...]
    shared: tuple[str, ...] = ()

    def labelled(self, label: str | None) -> tuple[Machine, ...]:
        """Return the machines that have a label; all of them for None."""
        return tuple(machine for machine in self.machines if label is None or label in machine.labels)

    @property
    def labels(self) -> list[str]:
        return sorted({label for machine in self.machines for label in machine.labels})


_OWN = ("name", "host", "address")
_DEFAULTS = tuple(field for field in Machine.__struct_fields__ if field not in _OWN)
_TOP = ("hosts", "shared", *_DEFAULTS)


def parse_inventory(raw: object, where: str) -> Inventory:
    """Turn what a YAML file holds into an inventory; `where` names the file in messages.

    >>> [machine.name for machine in parse_inventory({"hosts": ["b-10", "b-2"]}, "hosts.yaml").machines]
    ['b-2', 'b-10']

    Raises `InputError` for an unknown key, with the nearest one, a wrong value, and a name that stands twice.
    """
    top = _mapping(raw, where)
    _check_keys(top, _TOP, where)
    entries = top.get("hosts")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{where}: hosts: expected a list with at least one machine")
    defaults = {key: value for key, value in top.items() if key in _DEFAULTS}
    machines = {}
    for number, entry in enumerate(entries, 1):
        machine = _machine(entry, defaults, f"{where}: hosts, number {number}")
        if machine.name in machines:
            raise InputError(f"{where}: hosts: {machine.name!r} stands there twice; a name is one machine's")
        machines[machine.name] = machine
    shared = top.get("shared") or []
    if not isinstance(shared, list) or not all(isinstance(path, str) and path.startswith("/") for path in shared):
        raise InputError(f"{where}: shared: expected a list of absolute folders, got {shared!r}")
    return Inventory(
        machines=tuple(machines[name] for name in natural_order(list(machines))),
        shared=tuple(str(PurePosixPath(path)) for path in shared),
    )


def _machine(entry: object, defaults: Mapping[str, Any], where: str) -> Machine:
    own = _mapping({"name": entry} if isinstance(entry, str) else entry, where)
    if isinstance(own.get("name"), str):
        where = f"{where} ({own['name']})"
    _check_keys(own, Machine.__struct_fields__, where)
    if "name" not in own:
        raise InputError(f"{where}: name: missing; a machine has a name that ssh knows, or a name and a host")
    given = {**defaults, **own}
    try:
        machine = msgspec.convert(given, Machine)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise InputError(f"{where}: {place.rstrip('`')}: {what.replace('`', '')}") from None
    _check_words(machine, where)
    return machine


def _check_words(machine: Machine, where: str) -> None:
    words = {
        "name": (_HOST, machine.name),
        "host": (_HOST, machine.destination),
        "user": (_USER, machine.user),
        "address": (_HOST, machine.address),
        "interface": (_HOST, machine.interface),
        "work_folder": (_PATH, machine.work_folder),
        "python": (_PATH, machine.python),
    }
    for key, (pattern, word) in words.items():
        if word is not None and not pattern.fullmatch(word):
            raise InputError(f"{where}: {key}: {word!r} has characters that do not belong there; rename it")
    if not machine.work_folder.startswith(("/", "~/")):
        raise InputError(f"{where}: work_folder: {machine.work_folder!r} must begin with / or ~/")
    for label in machine.labels:
        if not _LABEL.fullmatch(label):
            raise InputError(f"{where}: labels: {label!r} has characters that do not belong there; rename it")
    if machine.port is not None and not 0 < machine.port < 65_536:
        raise InputError(f"{where}: port: {machine.port} is no port; it is a number from 1 to 65535")
    if machine.gpus is not None and machine.gpus < 0:
        raise InputError(f"{where}: gpus: {machine.gpus} is no number of GPUs")


def _mapping(raw: object, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise InputError(f"{where}: expected a mapping of names to values, got {raw!r}")
    return raw


def _check_keys(given: Mapping[str, Any], legal: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in legal:
            near = difflib.get_close_matches(key, legal, n=1)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{where}: {key}: no such key.{guess} Legal keys here: {', '.join(legal)}")
