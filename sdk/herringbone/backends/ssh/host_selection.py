"""Which machines of an inventory may play which hosts of a job.

An instance type says it: `ssh:hosts.yaml` any machine of the file, `ssh:hosts.yaml#a100` those labelled so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from herringbone.backends.ssh.inventory import Inventory, Machine, Runtime, parse_inventory
from herringbone.planning.plan import HostPlan, JobPlan
from herringbone_contract.errors import InputError, LaunchError, UnsupportedError

PREFIX = "ssh:"


def split_type(instance_type: str) -> tuple[str, str | None]:
    """Return the inventory's file and the label that an instance type names.

    >>> split_type("ssh:hosts.yaml#a100"), split_type("ssh:hosts.yaml")
    (('hosts.yaml', 'a100'), ('hosts.yaml', None))
    """
    path, _, label = instance_type.removeprefix(PREFIX).partition("#")
    return path, label or None


def inventory_path(plan: JobPlan) -> Path:
    """Return the one inventory that a plan names. Raises `UnsupportedError` where its groups name several."""
    paths = sorted({split_type(host.instance_type)[0] for host in plan.hosts})
    if len(paths) > 1:
        raise UnsupportedError(f"instance_groups: a job has one inventory, not {', '.join(paths)}; use labels in one")
    if not paths[0]:
        raise InputError(f"instance_type: {PREFIX!r} names no inventory; write for example 'ssh:hosts.yaml'")
    return Path(plan.folder, paths[0]).expanduser()


def read_inventory(path: Path) -> Inventory:
    """Read an inventory file. Raises `InputError` where it is missing, no YAML, or wrong."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"inventory {path}: {reason}; the page docs/hosts.md shows one") from error
    try:
        # The C loader where there is one: it is ten times as fast, and 200 machines are planned at once.
        raw = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        raise InputError(f"inventory {path} cannot be read as YAML: {error}") from None
    return parse_inventory(raw, str(path))


def choose(
    hosts: Sequence[HostPlan], inventory: Inventory, *, busy: Mapping[str, str] | None = None
) -> dict[str, Machine]:
    """Give each host of a job a machine, in natural order; `busy` are machines that cannot be had, each with why.

    >>> inventory = Inventory(machines=(Machine(name="a"), Machine(name="b")))
    >>> host = HostPlan(name="algo-1", instance_type="ssh:h.yaml", group="g", ranks=1)
    >>> choose([host], inventory, busy={"a": "runs digits-7"})["algo-1"].name
    'b'

    Raises `InputError` for a label that no machine has or more hosts than machines, `LaunchError` where enough
    machines are there and too few can be had.
    """
    busy = busy or {}
    chosen: dict[str, Machine] = {}
    taken: set[str] = set()
    for host in _choosiest_first(hosts):
        label = split_type(host.instance_type)[1]
        able = inventory.labelled(label)
        if not able:
            known = ", ".join(inventory.labels) or "none"
            raise InputError(f"instance_type {host.instance_type!r}: no machine is labelled so; labels are: {known}")
        machine = next((each for each in able if each.name not in taken and each.name not in busy), None)
        if machine is None:
            wanted = sum(split_type(each.instance_type)[1] == label for each in hosts)
            raise _too_few(host.instance_type, wanted, able, taken, busy)
        chosen[host.name] = machine
        taken.add(machine.name)
    return {host.name: chosen[host.name] for host in hosts}


def runtime_of(machines: Iterable[Machine]) -> Runtime:
    """Return how all these machines run their hosts. Raises `UnsupportedError` where they differ in it.

    >>> runtime_of([Machine(name="a"), Machine(name="b", runtime="process")])
    'process'
    """
    found: dict[Runtime, str] = {}
    for machine in machines:
        found.setdefault(machine.runtime, machine.name)
    if len(found) > 1:
        said = ", ".join(f"{runtime} on {name}" for runtime, name in found.items())
        raise UnsupportedError(
            f"runtime: the hosts of a job are all of one kind, not {said}; tell them apart by labels"
        )
    return next(iter(found))


def _choosiest_first(hosts: Sequence[HostPlan]) -> list[HostPlan]:
    """Return hosts of labelled types before others, which could else take the machines that only those can use."""
    return sorted(hosts, key=lambda host: split_type(host.instance_type)[1] is None)


def _too_few(
    instance_type: str, wanted: int, able: Sequence[Machine], taken: Collection[str], busy: Mapping[str, str]
) -> InputError | LaunchError:
    reasons = [f"{each.name}: {busy[each.name]}" for each in able if each.name in busy]
    if reasons and wanted <= len(able):
        return LaunchError(
            f"{instance_type}: {wanted} hosts are wanted, and too few of {len(able)} machines can be had:\n  "
            + "\n  ".join(reasons)
        )
    elsewhere = sum(each.name in taken for each in able)
    return InputError(
        f"instance_count: {wanted} hosts of {instance_type!r} are wanted, and it has {len(able)} machines"
        + (f", {elsewhere} of them for the job's other hosts" if elsewhere and wanted <= len(able) else "")
    )
