"""The hosts of a job: their names, their order, their groups, and the file that tells a host its own name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from herringbone_contract.errors import ContractError

HOMOGENEOUS_GROUP = "homogeneousCluster"
_DIGITS = re.compile(r"([0-9]+)")


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
