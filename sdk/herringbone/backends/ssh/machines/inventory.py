"""The inventory: the machines of a user, how ssh reaches each one, and the choice of machines for a job's hosts.

user: me                          # settings for all machines; each machine may have its own
work_folder: /scratch/herringbone
shared: [/nfs/data]               # folders that every machine sees at the same path
hosts:
  - gpu-1                         # a name that ssh knows is enough
  - {name: gpu-2, host: 10.0.0.2, port: 2222, gpus: 8, labels: [a100]}

The instance type of a job names the file, and possibly a label: `ssh:hosts.yaml` is any machine of the file,
`ssh:hosts.yaml#a100` a machine with that label. Pure, except for `read_inventory`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from herringbone.plan.option_errors import python_words
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.system.documents import decoded, read_document
from herringbone.system.user_paths import expanded
from herringbone_contract.errors import InputError, LaunchError, UnsupportedError, near_words
from herringbone_contract.resources import natural_order

PREFIX = "ssh:"
Runtime = Literal["process", "docker"]
# ssh passes these words to a shell. None may look like an option or contain a character with a meaning to a shell.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PATH = re.compile(r"(~/|/)?[A-Za-z0-9_.][A-Za-z0-9_./+@=-]*")
_QUEUE = "fit(queue=True) or `herringbone run --queue` waits in line"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class MachinesBusyError(LaunchError):
    """Too few machines of an inventory are available now; `transient`, because that is a matter of time.

    To fix: Wait in line with `fit(queue=True)` or `herringbone run --queue`, or name an inventory with more machines.
    """

    transient = True


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine of an inventory.

    `host` is the destination for ssh, by default the name. `address` is the address for the other machines, by default
    that of `interface`, or the one that the ssh connection used. `work_folder` holds everything that jobs keep on the
    machine. `python` runs the ranks. `gpus` is the expected number of GPUs, None for no expectation. With `cpu_shares`,
    so many jobs without GPUs may run on the machine at a time; without, such a job has it alone. Predictions use
    `dollars_per_hour`, and `device`: the name of a GPU, or `memory=24GiB,flops=30e12,bandwidth=600e9`.
    """

    name: str
    host: str = ""
    user: str | None = None
    port: int | None = None
    address: str | None = None
    interface: str | None = None
    gpus: int | None = None
    cpu_shares: int | None = None
    labels: tuple[str, ...] = ()
    work_folder: str = "~/.herringbone/host"
    python: str = "python3"
    runtime: Runtime = "process"
    device: str | None = None
    dollars_per_hour: float | None = None

    @property
    def destination(self) -> str:
        """Return the destination for ssh."""
        return self.host or self.name


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Machines in natural order (`gpu-2` before `gpu-10`), and the folders that they share with this machine."""

    machines: tuple[Machine, ...]
    shared: tuple[str, ...] = ()

    def labelled(self, label: str | None) -> tuple[Machine, ...]:
        """Return the machines that have a label; all of them for None."""
        return tuple(machine for machine in self.machines if label is None or label in machine.labels)

    @property
    def labels(self) -> list[str]:
        """Return all labels, sorted."""
        return sorted({label for machine in self.machines for label in machine.labels})


# A default makes no sense for these: each machine has its own.
_PER_MACHINE = ("name", "host", "address")
_DEFAULTS = tuple(field for field in Machine.__struct_fields__ if field not in _PER_MACHINE)
_TOP_KEYS = ("hosts", "shared", *_DEFAULTS)


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file. Raises `InputError` for a file that is missing, not YAML, or wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"inventory {path}: {error.strerror}; the line `hosts: [gpu-1, gpu-2]` is a whole inventory"
        ) from error
    origin = f"inventory {path}"
    raw = read_document(decoded(data, origin), origin)
    return parse_inventory(raw, str(path))


def parse_inventory(raw: object, file: str) -> Inventory:
    """Return the inventory in the content of a YAML file; `file` is its name in messages.

    >>> [machine.name for machine in parse_inventory({"hosts": ["b-10", "b-2"]}, "hosts.yaml").machines]
    ['b-2', 'b-10']

    Raises `InputError` for an unknown key (with the nearest known one), a wrong value, or a name that appears twice.
    """
    top = _mapping(raw, file)
    _check_keys(top, _TOP_KEYS, file)
    entries = top.get("hosts")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{file}: hosts: expected a list with at least one machine")
    defaults = {key: value for key, value in top.items() if key in _DEFAULTS}
    machines = {}
    for number, entry in enumerate(entries, 1):
        machine = _machine(entry, defaults, f"{file}: hosts, number {number}")
        if machine.name in machines:
            raise InputError(f"{file}: hosts: {machine.name!r} appears twice; give each machine a name of its own")
        machines[machine.name] = machine
    shared = top.get("shared") or []
    if not isinstance(shared, list) or not all(isinstance(path, str) and path.startswith("/") for path in shared):
        raise InputError(f"{file}: shared: expected a list of absolute folders, got {shared!r}")
    return Inventory(
        machines=tuple(machines[name] for name in natural_order(list(machines))),
        # Without a slash at the end, so that paths compare equal.
        shared=tuple(str(PurePosixPath(path)) for path in shared),
    )


def split_type(instance_type: str) -> tuple[str, str | None]:
    """Return the inventory's file and the label in an instance type.

    >>> split_type("ssh:hosts.yaml#a100"), split_type("ssh:hosts.yaml")
    (('hosts.yaml', 'a100'), ('hosts.yaml', None))
    """
    path, _, label = instance_type.removeprefix(PREFIX).partition("#")
    return path, label or None


def inventory_path(plan: JobPlan) -> Path:
    """Return the inventory of a plan. Raises `UnsupportedError` when its groups name several inventories."""
    paths = sorted({split_type(host.instance_type)[0] for host in plan.hosts})
    if len(paths) > 1:
        raise UnsupportedError(f"instance_groups: a job has one inventory, not {', '.join(paths)}; use labels in one")
    if not paths[0]:
        raise InputError(f"instance_type: {PREFIX!r} names no inventory; write for example 'ssh:hosts.yaml'")
    return Path(plan.folder, expanded(paths[0]))


def choose(
    hosts: Sequence[HostPlan], inventory: Inventory, *, busy: Mapping[str, str] | None = None
) -> dict[str, Machine]:
    """Choose a machine for each host of a job, in natural order; `busy` maps unavailable machines to the reason.

    >>> inventory = Inventory(machines=(Machine(name="a"), Machine(name="b")))
    >>> host = HostPlan(name="algo-1", instance_type="ssh:h.yaml", group="g", ranks=1)
    >>> choose([host], inventory, busy={"a": "runs digits-7"})["algo-1"].name
    'b'

    Raises `InputError` for a label that no machine has, or for more hosts than machines. Raises `LaunchError` when
    there are enough machines and too few of them are available.
    """
    busy = busy or {}
    chosen: dict[str, Machine] = {}
    taken: set[str] = set()
    for host in _labelled_first(hosts):
        label = split_type(host.instance_type)[1]
        candidates = inventory.labelled(label)
        if not candidates:
            known = ", ".join(inventory.labels) or "none"
            raise InputError(
                f"instance_type {host.instance_type!r}: no machine has the label {label!r}; labels are: {known}"
            )
        # Candidates are in natural order, so the same job gets the same machines if they are free.
        machine = next((one for one in candidates if one.name not in taken and one.name not in busy), None)
        if machine is None:
            wanted = sum(split_type(other.instance_type)[1] == label for other in hosts)
            raise _too_few(host.instance_type, wanted, candidates, taken, busy)
        chosen[host.name] = machine
        taken.add(machine.name)
    # In the order of the hosts: the first one's machine is where the supervisors connect.
    return {host.name: chosen[host.name] for host in hosts}


def runtime_of(machines: Iterable[Machine]) -> Runtime:
    """Return the common runtime of machines. Raises `UnsupportedError` when they have different ones.

    >>> runtime_of([Machine(name="a"), Machine(name="b", runtime="process")])
    'process'
    """
    examples: dict[Runtime, str] = {}
    for machine in machines:
        examples.setdefault(machine.runtime, machine.name)
    if len(examples) > 1:
        shown = ", ".join(f"{runtime} on {name}" for runtime, name in examples.items())
        raise UnsupportedError(
            f"runtime: all hosts of a job have one runtime, not {shown}; choose machines of one runtime by a label"
        )
    return next(iter(examples))


def _labelled_first(hosts: Sequence[HostPlan]) -> list[HostPlan]:
    """Return hosts with a label before the others, which could otherwise take the only machines with that label."""
    return sorted(hosts, key=lambda host: split_type(host.instance_type)[1] is None)


def _too_few(
    instance_type: str, wanted: int, candidates: Sequence[Machine], taken: Collection[str], busy: Mapping[str, str]
) -> InputError | LaunchError:
    reasons = [f"{machine.name}: {busy[machine.name]}" for machine in candidates if machine.name in busy]
    # Busy machines are a matter of time; too few machines are an error in the job or in the inventory.
    if reasons and wanted <= len(candidates):
        return MachinesBusyError(
            f"{instance_type}: the job needs {wanted} hosts, and too few of {len(candidates)} machines are available:\n"
            "  " + "\n  ".join([*reasons, _QUEUE])
        )
    taken_count = sum(machine.name in taken for machine in candidates)
    return InputError(
        f"instance_count: the job needs {wanted} hosts of {instance_type!r}, which has {len(candidates)} machines"
        + (f", {taken_count} of them for the job's other hosts" if taken_count and wanted <= len(candidates) else "")
    )


def _machine(entry: object, defaults: Mapping[str, Any], place: str) -> Machine:
    settings = _mapping({"name": entry} if isinstance(entry, str) else entry, place)
    # From here on messages name the machine, too.
    if isinstance(settings.get("name"), str):
        place = f"{place} ({settings['name']})"
    _check_keys(settings, Machine.__struct_fields__, place)
    if "name" not in settings:
        raise InputError(f"{place}: name: missing; a machine has a name that ssh knows, or a name and a host")
    try:
        machine = msgspec.convert({**defaults, **settings}, Machine)
    except msgspec.ValidationError as error:
        # msgspec's text: Expected `int | null`, got `str` - at `$.port`
        reason, _, key = str(error).partition(" - at `$.")
        raise InputError(f"{place}: {key.rstrip('`')}: {python_words(reason)}") from None
    _check_words(machine, place)
    return machine


def _check_words(machine: Machine, place: str) -> None:
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
            raise InputError(f"{place}: {key}: {word!r} has characters that are not allowed; rename it")
    if not machine.work_folder.startswith(("/", "~/")):
        raise InputError(f"{place}: work_folder: {machine.work_folder!r} must begin with / or ~/")
    for label in machine.labels:
        if not _LABEL.fullmatch(label):
            raise InputError(f"{place}: labels: {label!r} has characters that are not allowed; rename it")
    if machine.port is not None and not 0 < machine.port < 65_536:
        raise InputError(f"{place}: port: {machine.port} is not a port; expected a number from 1 to 65535")
    if machine.gpus is not None and machine.gpus < 0:
        raise InputError(f"{place}: gpus: {machine.gpus} is not a number of GPUs; expected 0 or more")
    if machine.cpu_shares is not None and not 0 < machine.cpu_shares <= 1000:
        raise InputError(f"{place}: cpu_shares: {machine.cpu_shares} is no number of jobs; expected 1 to 1000")
    if machine.dollars_per_hour is not None and not 0 <= machine.dollars_per_hour < float("inf"):
        raise InputError(f"{place}: dollars_per_hour: {machine.dollars_per_hour} is no price; expected 0 or more")


def _mapping(raw: object, place: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise InputError(f"{place}: expected a mapping of names to values, got {raw!r}")
    return raw


def _check_keys(settings: Mapping[str, Any], legal: tuple[str, ...], place: str) -> None:
    for key in settings:
        if key not in legal:
            near = near_words(key, legal)
            guess = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{place}: {key}: no such key.{guess} Legal keys here: {', '.join(legal)}")
