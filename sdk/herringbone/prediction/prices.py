"""The price of hosts in dollars per hour: of `ml.*` types from AWS's price list, of `ssh:` from their inventory.

The option `dollars_per_hour` comes before both, and is the only price of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from herringbone.backends.sagemaker.pricing import Prices, kept_price
from herringbone.backends.ssh.machines.inventory import PREFIX, Inventory, inventory_path, read_inventory, split_type
from herringbone.plan.budget import check_budget
from herringbone.plan.plan import JobPlan
from herringbone_contract.errors import HerringboneError, OptionError


def price_of(instance_type: str, cache: Path) -> float | None:
    """Return the on-demand price of an `ml.*` type in dollars per hour; None where it is not known.

    >>> price_of("ml.g5.xlarge", home.cache / "prices")              # doctest: +SKIP
    1.408

    AWS is asked at most once a week. Without AWS's packages, a region or a network, an older answer of any region
    counts.
    """
    if not instance_type.startswith("ml."):
        return None
    try:
        from herringbone.aws.session import AwsSession

        price = Prices(AwsSession(attempts=1), cache).hourly(instance_type)
    except (HerringboneError, ImportError):
        price = None
    return kept_price(instance_type, cache) if price is None else price


def priced(plan: JobPlan, cache: Path, price: Callable[[str, Path], float | None] = price_of) -> JobPlan:
    """Return a plan with the price of its hosts, where it is wanted or costs nothing to know.

    >>> priced(plan, home.cache / "prices").hourly_cost              # doctest: +SKIP
    2.816

    Raises `OptionError` for a budget of hosts without a price, or one that pays for nothing.
    """
    options = plan.options
    if options.dollars_per_hour is not None:
        hourly: float | None = options.dollars_per_hour * len(plan.hosts)
    elif plan.hosts[0].instance_type.startswith(PREFIX):
        hourly = most_of(plan, read_inventory(inventory_path(plan)))
    elif options.max_cost is not None:
        known = {name: price(name, cache) for name in dict.fromkeys(host.instance_type for host in plan.hosts)}
        hourly = _sum([known[host.instance_type] for host in plan.hosts])
    else:
        # The price list would be asked for nothing.
        hourly = None
    if options.max_cost is not None:
        if not hourly:
            types = ", ".join(dict.fromkeys(host.instance_type for host in plan.hosts))
            raise OptionError(
                f"max_cost: the price of {types} is not known here, so nobody knows when it is spent; give the price "
                "of a host (dollars_per_hour=1.50). An inventory may have it for each machine; AWS's list has ml.*"
            )
        check_budget(options.max_cost, hourly)
    return plan if hourly is None else msgspec.structs.replace(plan, hourly_cost=hourly)


def most_of(plan: JobPlan, inventory: Inventory) -> float | None:
    """Return the price of a plan's hosts on the dearest machines that they may get; None where one has no price. Pure.

    Machines that are busy at the start are passed over, so a budget of the first ones would be spent on dearer ones.
    """
    prices: list[float | None] = []
    for host in plan.hosts:
        own = [machine.dollars_per_hour for machine in inventory.labelled(split_type(host.instance_type)[1])]
        known = [price for price in own if price is not None]
        prices.append(max(known) if known and len(known) == len(own) else None)
    return _sum(prices)


def _sum(prices: list[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    # A sum over only some of the hosts would look like the price of all.
    return sum(known) if len(known) == len(prices) else None
