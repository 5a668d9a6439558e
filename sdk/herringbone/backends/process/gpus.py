"""The GPUs of a job of `local_process`: what it wants, and the variable by which each host sees its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus, is_share
from herringbone.slots.folder import cpu_shares
from herringbone.slots.ticket import Wants

if TYPE_CHECKING:
    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.slots.probe import Probe


def wants_of(plan: JobPlan, probe: Probe) -> Wants:
    """Return what a job claims: `gpus` for each host with ranks, else a CPU share for each host if there are any."""
    if plan.options.gpus is None:
        return Wants(shares=len(plan.hosts) if cpu_shares(os.environ) else 0)
    return Wants(gpus=plan.options.gpus * len(_hosts(plan)), among=visible_gpus(plan, probe))


def gpus_of_hosts(plan: JobPlan, granted: Sequence[str] | None, probe: Probe) -> dict[str, dict[str, str]]:
    """Return the variable for each host of a job with `gpus`; where nobody claims any, the first ones are taken."""
    count = plan.options.gpus
    if count is None:
        return {}
    if granted is None:
        granted = visible_gpus(plan, probe) or find_gpus(probe.listing(), {})
    gpus = [device for device in granted if not is_share(device)]
    # A helper has no ranks, and sees no GPU.
    shown = {host.name: "" for host in plan.hosts}
    shown |= {host.name: ",".join(gpus[at * count : (at + 1) * count]) for at, host in enumerate(_hosts(plan))}
    return {name: {VISIBLE_VARIABLE: value} for name, value in shown.items()}


def visible_gpus(plan: JobPlan, probe: Probe) -> tuple[str, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to the job; empty where it is not set, for all of them."""
    environ = {**os.environ, **plan.environment}
    return find_gpus(probe.listing(), environ) if VISIBLE_VARIABLE in environ else ()


def _hosts(plan: JobPlan) -> list[HostPlan]:
    return [host for host in plan.hosts if not host.helper]
