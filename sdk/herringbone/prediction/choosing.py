"""The alternatives that a search compares, and their order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herringbone.prediction.hosts import with_ranks
from herringbone_contract.prediction.answer import Prediction
from herringbone_contract.prediction.question import Hosts

# Strategies that start one rank on a host without GPUs.
_ONE_RANK = ("torch_distributed",)


def rank_choices(hosts: Hosts) -> tuple[Hosts, ...]:
    """Return the hosts with each number of ranks to compare: all GPUs, or one rank or one for each core.

    A single rank of a host without GPUs computes with all cores.
    """
    most = with_ranks(hosts)
    counts = {most.ranks_per_host} if hosts.cores is None else {1, hosts.ranks_per_host, most.ranks_per_host}
    return tuple(msgspec.structs.replace(hosts, ranks_per_host=count) for count in sorted(counts))


def base_of(distribution: Mapping[str, Any], hosts: Hosts) -> dict[str, Any]:
    """Return the dict from which a search begins, with a launcher that starts so many ranks on these hosts.

    >>> from herringbone_contract.prediction.devices import Device
    >>> cpu = Device(name="cpu", memory_bytes=1, operations_per_second={"float32": 1.0}, bytes_per_second=1.0)
    >>> base_of({}, Hosts(name="local_process", count=1, ranks_per_host=4, device=cpu, cores=4))
    {'mpi': {'enabled': True, 'processes_per_host': 4}}
    """
    if hosts.cores is None:
        return dict(distribution)
    left = {name: value for name, value in distribution.items() if name not in (*_ONE_RANK, "mpi")}
    if hosts.ranks_per_host == 1:
        return left if hosts.count == 1 and "smdistributed" not in left else dict(distribution)
    if "smdistributed" in left and "torch_distributed" in distribution:
        # Version 2 of modelparallel has no other launcher.
        return dict(distribution)
    return {**left, "mpi": {"enabled": True, "processes_per_host": hosts.ranks_per_host}}


def best_first(layouts: Sequence[Prediction], hosts: Sequence[Hosts]) -> list[Prediction]:
    """Return layouts by dollars of a sample where several hosts have prices, else by speed; refused ones last."""
    prices = {one.name: one.dollars_per_hour for one in hosts}
    by_price = len(prices) > 1 and None not in prices.values()

    def cost(layout: Prediction) -> tuple[bool, float]:
        if layout.refusal is not None or not layout.samples_per_second:
            return True, 0.0
        price = (prices[layout.hosts] or 0.0) * layout.count if by_price else 1.0
        return False, price / layout.samples_per_second

    unique: dict[tuple[Any, ...], Prediction] = {}
    for layout in layouts:
        key = (layout.hosts, layout.count, str(layout.distribution), str(layout.mesh), layout.refusal)
        unique.setdefault(key, layout)
    return sorted(unique.values(), key=cost)
