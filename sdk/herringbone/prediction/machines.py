"""Known figures of machines that are not this one: those of an inventory, as it says or as `hosts check` measured."""

from __future__ import annotations

from collections.abc import Callable

from herringbone.backends.device_cache import DeviceCache, MeasuredDevice
from herringbone.backends.ssh.inventory import PREFIX, Machine, choose, inventory_path, read_inventory
from herringbone.jobs.home import find_home
from herringbone.planning.plan import JobPlan
from herringbone.prediction.hosts import MachineFigures
from herringbone.prediction.options import parse_device
from herringbone_contract.prediction.devices import device_named


def known_figures(plan: JobPlan) -> MachineFigures | None:
    """Return the figures of the machines that a plan would use; None for machines that nobody has described."""
    training = [host for host in plan.hosts if host.ranks != 0]
    if not training or not training[0].instance_type.startswith(PREFIX):
        return None
    inventory = read_inventory(inventory_path(plan))
    cache = DeviceCache(find_home().cache / "devices")
    return figures_of(list(choose(training, inventory).values()), cache.of)


def figures_of(
    machines: list[Machine], measured: Callable[[Machine], MeasuredDevice | None] = lambda _: None
) -> MachineFigures | None:
    """Return the figures of machines that train together: a device that one of them has, and the mean price. Pure.

    >>> figures = figures_of([Machine(name="a", device="NVIDIA L4", gpus=2, dollars_per_hour=1.5)])
    >>> figures.device.name, figures.devices, figures.dollars_per_hour
    ('NVIDIA L4', 2, 1.5)

    The inventory's `device` counts before what `herringbone hosts check` has `measured`. Raises `UsageError` for a
    device that no table knows.
    """
    device = cores = None
    gpus = next((machine.gpus for machine in machines if machine.gpus), None)
    named = next((machine.device for machine in machines if machine.device), None)
    found = next(filter(None, map(measured, machines)), None)
    if named is not None:
        device = parse_device(named) if "=" in named else device_named(named)
    elif found is not None:
        device = found.device
        # `hosts check` measured all cores together, and no machine tells their number here.
        cores = 1 if device.name == "cpu" else None
    if device is None:
        return None
    prices = [machine.dollars_per_hour for machine in machines]
    known = [price for price in prices if price is not None]
    return MachineFigures(
        device=device,
        devices=gpus or (found.devices if found is not None else 1),
        cores=cores,
        # A mean over only some of the machines would look like the price of all.
        dollars_per_hour=sum(known) / len(known) if known and len(known) == len(prices) else None,
    )
