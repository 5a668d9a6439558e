"""Known figures of machines that are not this one.

Those of an inventory, as it says or as `hosts check` measured; of a Kubernetes cluster by the labels of its nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from herringbone.backends.kubernetes.api import Cluster
from herringbone.backends.kubernetes.inspection import MODEL_LABELS, models_of
from herringbone.backends.kubernetes.names import settings_of
from herringbone.backends.ssh.machines.device_cache import DeviceCache, MeasuredDevice
from herringbone.backends.ssh.machines.inventory import PREFIX, Machine, choose, inventory_path, read_inventory
from herringbone.plan.plan import JobPlan
from herringbone.prediction.hosts import MachineFigures
from herringbone.prediction.options import parse_device
from herringbone.records.home import find_home
from herringbone_contract.errors import KubernetesError, OptionError, UnsupportedError
from herringbone_contract.prediction.devices import Device, device_named


def known_figures(plan: JobPlan) -> MachineFigures | None:
    """Return the figures of the machines that a plan would use; None for machines that nobody has described."""
    training = [host for host in plan.hosts if host.ranks != 0]
    if training and plan.backend == "kubernetes":
        return figures_of(_cluster_machines(plan))
    if not training or not training[0].instance_type.startswith(PREFIX):
        return None
    inventory = read_inventory(inventory_path(plan))
    cache = DeviceCache(find_home().cache / "devices")
    return figures_of(list(choose(training, inventory).values()), cache.of)


def _cluster_machines(plan: JobPlan) -> list[Machine]:
    """Return a machine for each model of the nodes on which a plan's pods fit; [] where the cluster does not say it."""
    settings, gpus = settings_of(plan), plan.options.gpus or 0
    models = {model for name in MODEL_LABELS if (model := settings.node_selector.get(name))}
    # Without an account that may list nodes, or a cluster, nothing is known.
    with contextlib.suppress(KubernetesError, OptionError, UnsupportedError):
        models = models or models_of(Cluster(settings.context), settings.node_selector, settings.gpu_resource, gpus)
    return [Machine(name=model, device=model, gpus=gpus) for model in models if gpus]


def figures_of(
    machines: list[Machine], measured: Callable[[Machine], MeasuredDevice | None] = lambda _: None
) -> MachineFigures | None:
    """Return the figures of machines that train together: those of the slowest one, and the mean price. Pure.

    >>> figures = figures_of([Machine(name="a", device="NVIDIA L4", gpus=2, dollars_per_hour=1.5)])
    >>> figures.device.name, figures.devices, figures.dollars_per_hour
    ('NVIDIA L4', 2, 1.5)

    The inventory's `device` counts before what `herringbone hosts check` has `measured`. A step ends when its slowest
    rank does, so the slowest known device stands for all, with the least memory and the fewest devices of any. Raises
    `UsageError` for a device that no table knows.
    """
    known_machines = [figures for machine in machines if (figures := _of_machine(machine, measured(machine)))]
    if not known_machines:
        return None
    slowest = min(known_machines, key=lambda figures: _rate(figures.device))
    memory = min(figures.device.memory_bytes for figures in known_machines)
    prices = [machine.dollars_per_hour for machine in machines]
    known = [price for price in prices if price is not None]
    return MachineFigures(
        device=msgspec.structs.replace(slowest.device, memory_bytes=memory),
        devices=min(figures.devices for figures in known_machines),
        cores=slowest.cores,
        # A mean over only some of the machines would look like the price of all.
        dollars_per_hour=sum(known) / len(known) if known and len(known) == len(prices) else None,
    )


def _of_machine(machine: Machine, measured: MeasuredDevice | None) -> MachineFigures | None:
    """Return device, number of devices and cores of one machine; None where nobody has described or measured it."""
    devices = machine.gpus or (measured.devices if measured is not None else 1)
    if machine.device:
        device = parse_device(machine.device) if "=" in machine.device else device_named(machine.device)
        return MachineFigures(device, devices)
    if measured is None:
        return None
    # An older release did not keep the number of cores, which it measured together.
    cores = (measured.cores or 1) if measured.device.name == "cpu" else None
    return MachineFigures(measured.device, devices, cores=cores)


def _rate(device: Device) -> float:
    rates = device.operations_per_second
    return (rates.get("float32") or max(rates.values())) * device.fraction
