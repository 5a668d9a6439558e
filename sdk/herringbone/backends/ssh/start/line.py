"""The lines of the machines that a job waits in: what it claims on each, and the process that waits in its place."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.ssh.machines.inventory import Inventory, Machine, choose, split_type
from herringbone.slots.claim import new_mark
from herringbone.slots.devices import VISIBLE_VARIABLE
from herringbone.slots.pending import deadline_of, leave_to_waiter
from herringbone_contract.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.ssh.start.upload import PackedCode
    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.records.home import Home

_WAITER = "herringbone.backends.ssh.waiter"


def wants_on(plan: JobPlan, machine: Machine) -> dict[str, Any]:
    """Return what the job claims on a machine, for the agent's verbs `claim` and `enter`.

    `gpus` of the job's GPUs, or a share where the inventory says `cpu_shares`, or without either the whole machine. A
    job that asked for neither GPUs nor a place in line has it beside programs outside of Herringbone.
    """
    shares = {} if machine.cpu_shares is None else {"cpu_shares": machine.cpu_shares}
    if plan.options.gpus is None:
        return shares | ({"shares": 1} if shares else {} if plan.queue else {"beside_foreign": True})
    # A helper only sums bytes.
    if all(host.helper for host in _hosts_on(plan, machine)):
        return shares | {"shares": 1}
    visible = plan.environment.get(VISIBLE_VARIABLE)
    return shares | {"gpus": plan.options.gpus} | ({} if visible is None else {"visible": visible})


def request_of(plan: JobPlan, machine: Machine) -> dict[str, Any]:
    """Return the members of `claim` and `enter` on a machine, without those of a place."""
    return {
        "job": plan.job_name,
        "client": f"{getpass.getuser()}@{platform.node()}",
        "priority": plan.options.priority,
        "max_run": float(plan.time_limit),
        **wants_on(plan, machine),
    }


def fitting(plan: JobPlan, inventory: Inventory, never: Mapping[str, str] | None = None) -> Inventory:
    """Return the inventory without machines that can never serve the job; `never` has what the machines said of it.

    Raises `UnsupportedError` where too few are left.
    """
    reasons = {
        machine.name: f"it has {machine.gpus}"
        for machine in inventory.machines
        if machine.gpus is not None and machine.gpus < wants_on(plan, machine).get("gpus", 0)
    } | dict(never or {})
    if not reasons:
        return inventory
    left = msgspec.structs.replace(
        inventory, machines=tuple(machine for machine in inventory.machines if machine.name not in reasons)
    )
    try:
        choose(plan.hosts, left)
    except InputError:
        # The error of the whole inventory is the better one, if it has one.
        choose(plan.hosts, inventory)
        raise UnsupportedError(
            "gpus: too few machines can ever serve the job:\n  "
            + "\n  ".join(f"{name}: {reason}" for name, reason in reasons.items())
        ) from None
    return left


def candidates(plan: JobPlan, inventory: Inventory) -> list[Machine]:
    """Return the machines on which a host of the job may run."""
    return [machine for machine in inventory.machines if _hosts_on(plan, machine)]


def place_of(looks: Mapping[str, Mapping[str, Any]], troubles: Mapping[str, str], hosts: int) -> dict[str, Any]:
    """Return the place of a waiting job, as its description shows it, from what machines answered.

    >>> place_of({"gpu-1": {"ready": True, "place": 1, "text": "1st in line"},
    ...           "gpu-2": {"ready": False, "place": 2, "text": "2nd in line, waits for a (ann)"}}, {}, hosts=2)
    {'Place': 2, 'Text': '2nd in line, waits for a (ann), on gpu-2'}

    `troubles` has the machines that do not answer. A job of `hosts` hosts waits for the machine that is the last of the
    `hosts` best ones.
    """
    order = sorted(looks, key=lambda name: (not looks[name]["ready"], looks[name]["place"]))
    if len(order) >= hosts:
        name = order[hosts - 1]
        return {"Place": looks[name]["place"], "Text": f"{looks[name]['text']}, on {name}"}
    why = "; ".join(f"{name} does not answer: {why}" for name, why in list(troubles.items())[:2])
    return {"Place": 1, "Text": f"waits for machines: {why}" if why else "enters the lines of its machines"}


def _hosts_on(plan: JobPlan, machine: Machine) -> Sequence[HostPlan]:
    labels = {None, *machine.labels}
    return [host for host in plan.hosts if split_type(host.instance_type)[1] in labels]


def wait_in_line(plan: JobPlan, code: PackedCode, arrival: float, home: Home, *, stop: Callable[[str], None]) -> None:
    """Start the waiter of a job whose row this process has claimed; `stop` stops a job that is the waiter's already."""
    config = {
        "job": plan.job_name,
        "plan": plan.to_send(),
        "code": str(code.path),
        "digest": code.digest,
        "mark": new_mark(),
        "arrival": arrival,
        "deadline": deadline_of(plan, arrival),
    }
    leave_to_waiter(_WAITER, config, home, stop=stop)
