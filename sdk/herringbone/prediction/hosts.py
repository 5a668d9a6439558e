"""The hosts of a plan as the predictor sees them: devices, ranks, links, prices. Pure.

Hosts of `local_process` and `local` are on one machine, so each has its share of cores and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from herringbone.aws.instance_types import accelerators
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.prediction.machine import Machine, cpu_device
from herringbone_contract.errors import OptionError, UnsupportedError
from herringbone_contract.layout import ranks_on_host
from herringbone_contract.prediction.devices import Device, Link
from herringbone_contract.prediction.question import Hosts

# Loopback: gloo between processes of one machine reaches a few GB/s.
_LOOPBACK = Link(latency_s=30e-6, bytes_per_second=2e9)
# 10 Gbit/s, for machines whose network nobody has measured.
_NETWORK = Link(latency_s=50e-6, bytes_per_second=1.1e9)
_NETWORK_LATENCY = 30e-6
_ON_THIS_MACHINE = ("local_process", "local")


class MachineFigures(NamedTuple):
    """Known figures of the machine of another backend: its devices, its link and its price."""

    device: Device
    devices: int = 1
    cores: int | None = None
    link: Link | None = None
    dollars_per_hour: float | None = None


def hosts_of(
    plan: JobPlan,
    *,
    machine: Callable[[], Machine],
    known: Callable[[JobPlan], MachineFigures | None],
    device: Device | None = None,
    tables_first: bool = False,
) -> Hosts:
    """Return the training hosts of a plan.

    `machine` gives the facts of this machine, `known` those of machines of the job's backend. `device` is the user's,
    and counts before all tables, or with `tables_first` only where none knows the hosts. Raises `OptionError` where
    nobody knows the device, `UnsupportedError` for hosts of several types.
    """
    training = [host for host in plan.hosts if host.ranks != 0]
    name = _only_type(training)
    figures = _figures(plan, name, len(training), machine, known, device, tables_first=tables_first)
    gpus = figures.devices if figures.cores is None else 0
    return Hosts(
        name=name,
        count=len(training),
        ranks_per_host=_ranks(plan, training[0], gpus),
        device=figures.device,
        devices=figures.devices,
        cores=figures.cores,
        link=figures.link,
        dollars_per_hour=figures.dollars_per_hour,
    )


def with_ranks(hosts: Hosts) -> Hosts:
    """Return the hosts with as many ranks as a search may use: one for each GPU or core, or more where a plan has more.

    >>> cpu = Device(name="cpu", memory_bytes=1, operations_per_second={"float32": 1.0}, bytes_per_second=1.0)
    >>> with_ranks(Hosts(name="local_process", count=1, ranks_per_host=1, device=cpu, cores=4)).ranks_per_host
    4
    """
    most = hosts.devices if hosts.cores is None else hosts.cores
    return msgspec.structs.replace(hosts, ranks_per_host=max(most, hosts.ranks_per_host))


def _figures(
    plan: JobPlan,
    name: str,
    count: int,
    machine: Callable[[], Machine],
    known: Callable[[JobPlan], MachineFigures | None],
    device: Device | None,
    *,
    tables_first: bool,
) -> MachineFigures:
    if name in (*_ON_THIS_MACHINE, "local_gpu"):
        figures: MachineFigures | None = _here(name, count, machine())
    elif name.startswith("ml."):
        found = accelerators(name)
        figures = (
            None
            if found is None
            else MachineFigures(
                found.device,
                found.gpus,
                link=Link(latency_s=_NETWORK_LATENCY, bytes_per_second=found.network_bytes_per_second),
            )
        )
    else:
        figures = known(plan)
    if device is not None and not (tables_first and figures is not None):
        # The number of devices of a host is known only to its table; without one, there is one.
        figures = (
            MachineFigures(device, link=_NETWORK) if figures is None else figures._replace(device=device, cores=None)
        )
    if figures is None:
        raise OptionError(
            f"instance_type {name!r}: its device is not known here, so memory and time cannot be predicted; give its"
            " memory, operations a second and memory bandwidth: --device memory=24GiB,flops=30e12,bandwidth=600e9, or"
            " measure machines of an inventory with `herringbone hosts check`"
        )
    return figures if figures.link is not None else figures._replace(link=_NETWORK)


def _here(name: str, count: int, machine: Machine) -> MachineFigures:
    if machine.gpus and name != "local":
        return MachineFigures(machine.gpus[0], len(machine.gpus), link=_LOOPBACK)
    return MachineFigures(cpu_device(machine, count), cores=max(1, machine.cores // count), link=_LOOPBACK)


def _ranks(plan: JobPlan, host: HostPlan, gpus: int) -> int:
    if host.ranks is not None:
        return host.ranks
    return ranks_on_host(plan.distribution.launcher, plan.distribution.processes_per_host, num_gpus=gpus)


def _only_type(hosts: list[HostPlan]) -> str:
    types = sorted({host.instance_type for host in hosts})
    if len(types) > 1:
        raise UnsupportedError(
            f"instance_groups: hosts of several types train together ({', '.join(types)}), and a prediction knows one"
            " type; plan without measuring, or give all training groups one type"
        )
    return types[0]
