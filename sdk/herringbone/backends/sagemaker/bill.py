"""What a job has cost, from its description: seconds, what spot saved, and dollars where the price is known. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_HOUR_SECONDS = 3_600


def bill_of(described: Mapping[str, Any], price: Callable[[str], float | None]) -> str | None:
    """Say what a job has cost; None where it never trained. `price` gives dollars an hour of an instance type.

    >>> hosts = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2}
    >>> bill_of({"TrainingTimeInSeconds": 300, "BillableTimeInSeconds": 120, "EnableManagedSpotTraining": True,
    ...          "ResourceConfig": hosts}, {"ml.g5.xlarge": 1.5}.get)
    'trained 300 s, billed 120 s on each of 2 hosts, 60 % saved by spot, about $0.10'

    The service bills wall-clock seconds of each host, and less of them for spot; dollars are an estimate by the list
    price, without storage and transfer.
    """
    trained = described.get("TrainingTimeInSeconds")
    if trained is None:
        return None
    billed = described.get("BillableTimeInSeconds", trained)
    hosts = hosts_of(described)
    num_hosts = sum(hosts.values())
    parts = [f"trained {trained} s", f"billed {billed} s{f' on each of {num_hosts} hosts' if num_hosts > 1 else ''}"]
    if described.get("EnableManagedSpotTraining") and trained and billed < trained:
        parts.append(f"{round(100 * (1 - billed / trained))} % saved by spot")
    prices = {instance_type: price(instance_type) for instance_type in hosts}
    hourly = [hosts[kind] * dollars for kind, dollars in prices.items() if dollars is not None]
    if hosts and len(hourly) == len(prices):
        parts.append(f"about ${sum(hourly) * billed / _HOUR_SECONDS:.2f}")
    return ", ".join(parts)


def hosts_of(described: Mapping[str, Any]) -> dict[str, int]:
    """Return how many hosts of which instance type a job has."""
    resources = described.get("ResourceConfig") or {}
    hosts: dict[str, int] = {}
    for group in resources.get("InstanceGroups") or [resources]:
        if group.get("InstanceType"):
            hosts[group["InstanceType"]] = hosts.get(group["InstanceType"], 0) + group.get("InstanceCount", 1)
    return hosts


def hourly_price(products: Iterable[str]) -> float | None:
    """Return the price in the Pricing API's answer; None unless training on demand has exactly one there."""
    found = set()
    for text in products:
        product = json.loads(text)
        if product["product"]["attributes"].get("component") != "Training":
            continue
        for offer in product["terms"].get("OnDemand", {}).values():
            for dimension in offer["priceDimensions"].values():
                found.add(float(dimension["pricePerUnit"].get("USD", 0)))
    found.discard(0.0)
    return found.pop() if len(found) == 1 else None
