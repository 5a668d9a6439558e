"""The hosts of a job: names, order, groups and GPUs, and the file that tells a host its own name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from herringbone_contract.errors import ContractError

HOMOGENEOUS_GROUP = "homogeneousCluster"
_DIGITS = re.compile(r"([0-9]+)")
# "all": every GPU; "none": the driver's programs without a GPU; "void" or empty: granted in another way (CDI), or not.
_NOT_A_LIST = ("all", "none", "void", "")


def natural_order(hosts: Sequence[str]) -> list[str]:
    """Sort host names the way people count, so that the first host is the same one everywhere.

    >>> natural_order(["algo-10", "algo-2", "algo-1"])
    ['algo-1', 'algo-2', 'algo-10']
    """
    return sorted(hosts, key=_natural_key)


def _natural_key(host: str) -> list[tuple[int, str]]:
    # A split by a group alternates text and digits. The longer number is the larger one, of any length.
    parts = _DIGITS.split(host)
    return [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part) for index, part in enumerate(parts)]


def host_names(count: int) -> list[str]:
    """Return SageMaker's names for `count` hosts: algo-1, algo-2, ..."""
    return [f"algo-{number}" for number in range(1, count + 1)]


class HostGroup(NamedTuple):
    """Hosts of one instance type that play one role in a job."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]


class ResourceConfig(NamedTuple):
    """`resourceconfig.json`: the name of this host, and all hosts.

    `hosts` are in natural order, whatever the file's order is. An empty `network_interface` is left out of the file:
    each host finds its own.
    """

    current_host: str
    hosts: tuple[str, ...]
    current_instance_type: str = "local"
    current_group_name: str = HOMOGENEOUS_GROUP
    groups: tuple[HostGroup, ...] = ()
    network_interface: str = "eth0"

    @property
    def first_host(self) -> str:
        """The host of the coordinator, and of rank 0 unless it has no ranks."""
        return self.hosts[0]

    def group(self, name: str) -> HostGroup:
        """Return the group of that name. Raises `ContractError` when there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        known_names = ", ".join(group.name for group in self.groups)
        raise ContractError(f"resourceconfig.json has no instance group {name!r}; it has: {known_names}")

    def to_json(self) -> dict[str, Any]:
        """Return the file's content in the service's own spelling."""
        named = {"network_interface_name": self.network_interface} if self.network_interface else {}
        return {
            "current_host": self.current_host,
            "current_instance_type": self.current_instance_type,
            "current_group_name": self.current_group_name,
            # AWS documents this list as sorted by characters: algo-10 before algo-2.
            "hosts": sorted(self.hosts),
            "instance_groups": [
                {
                    "instance_group_name": group.name,
                    "instance_type": group.instance_type,
                    "hosts": sorted(group.hosts),
                }
                for group in self.groups
            ],
            **named,
        }


def parse_resource_config(text: str | bytes) -> ResourceConfig:
    """Read `resourceconfig.json`, which other tools also write, hence with optional fields.

    Raises `ContractError` when it is not JSON, or the current host is not among the hosts.
    """
    try:
        raw = json.loads(text)
        # A tool that runs one host may leave the list out.
        hosts = tuple(natural_order(raw.get("hosts") or [raw["current_host"]]))
        current = raw["current_host"]
        kind = raw.get("current_instance_type", "local")
        group_name = raw.get("current_group_name", HOMOGENEOUS_GROUP)
        groups = tuple(
            HostGroup(
                name=group["instance_group_name"],
                instance_type=group.get("instance_type", kind),
                hosts=tuple(natural_order(group["hosts"])),
            )
            for group in raw.get("instance_groups") or []
        ) or (HostGroup(HOMOGENEOUS_GROUP, kind, hosts),)
        interface = raw.get("network_interface_name", "eth0")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContractError(f"resourceconfig.json cannot be read: {error!r}") from error
    texts = [current, *hosts, kind, group_name, interface]
    texts += [text for group in groups for text in (group.name, group.instance_type, *group.hosts)]
    if not all(isinstance(text, str) for text in texts):
        raise ContractError("resourceconfig.json cannot be read: a name in it is no text")
    # A host outside the list would wait for the others for ever.
    if current not in hosts:
        raise ContractError(f"resourceconfig.json: current_host {current!r} is not among hosts {list(hosts)}")
    return ResourceConfig(
        current_host=current,
        hosts=hosts,
        current_instance_type=kind,
        current_group_name=group_name,
        groups=groups,
        network_interface=interface,
    )


def num_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> int:
    """Return the number of CUDA devices that ranks may use: whole GPUs, or the MIG slices of a GPU that is cut.

    The first of these that applies:

    1. `CUDA_VISIBLE_DEVICES`, read as CUDA reads it.
    2. `NVIDIA_VISIBLE_DEVICES`, by which a container gets some of the machine's GPUs. Images set it too, so it counts
       only if this host has a GPU.
    3. This host's device files. /proc is no measure: it lists the machine's GPUs also in a container without any.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _num_visible(visible)
    gpus = _device_files(root)
    granted = environ.get("NVIDIA_VISIBLE_DEVICES", "all").strip()
    if gpus and granted not in _NOT_A_LIST:
        return _num_visible(granted)
    return sum(_num_slices(root, gpu) or 1 for gpu in gpus)


def _device_files(root: Path) -> list[int]:
    """Return the numbers of the GPUs that this host has."""
    numbers = [path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia[0-9]*")]
    if numbers or any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv", "dev/nvidiactl")):
        return sorted(int(number) for number in numbers if number.isdigit())
    try:
        # Outside containers, after a machine's start: the driver makes the device files when a GPU is first used.
        return list(range(sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())))
    except OSError:
        return []


def _num_slices(root: Path, gpu: int) -> int:
    """Return the number of a GPU's MIG compute instances; 0 when it is not cut.

    Source: NVIDIA's MIG User Guide, "Device Nodes and Capabilities".
    """
    return sum(1 for _ in (root / f"proc/driver/nvidia/capabilities/gpu{gpu}/mig").glob("gi*/ci*/access"))


def _num_visible(listed: str) -> int:
    """Count a list of devices as CUDA does: everything from the first -1 on is hidden."""
    names = [name.strip() for name in listed.split(",")]
    hidden_from = names.index("-1") if "-1" in names else len(names)
    return sum(1 for name in names[:hidden_from] if name and name.lower() not in ("none", "void", "nodevfiles"))


def threads_of_rank(*, num_local: int, num_cpus: int, num_on_machine: int, machine_cpus: int) -> int | None:
    """Return the threads of a rank that shares its machine's cores with others; None for a lone rank, which has all.

    >>> threads_of_rank(num_local=2, num_cpus=8, num_on_machine=4, machine_cpus=8)
    2

    `num_local` ranks share the `num_cpus` of their host, and `num_on_machine` ranks of all hosts there the machine's.
    """
    return None if num_on_machine < 2 else max(1, min(num_cpus // num_local, machine_cpus // num_on_machine))
