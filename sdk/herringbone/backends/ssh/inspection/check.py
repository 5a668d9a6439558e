"""Check the machines of an inventory: their connections, their software, and the speed of the links between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import msgspec

from herringbone.backends.ssh.inspection import deep as examination
from herringbone.backends.ssh.machines.device_cache import DeviceCache, DeviceReport
from herringbone.backends.ssh.machines.facts import address_of, differences, versions_of
from herringbone.backends.ssh.machines.inventory import Inventory, Machine
from herringbone.backends.ssh.transport.connection import Connection
from herringbone.backends.ssh.transport.protocol import Transport
from herringbone_contract.errors import HostError
from herringbone_contract.faults.health import judge

# A link slower than this part of the median speed will delay every sum.
_SLOW_PART = 0.5
# A link that seems slow is measured this often once more: other programs may have had the processors.
_REPEATS = 2
_THREADS = 64
_TOKEN_BYTES = 16
# More than the agent gives the measurement.
_DEVICE_SECONDS = 150.0


class MachineReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One machine; `skew` is the lead of its clock in seconds, `runs` is the job that has the machine.

    `device` has the measured rates of its GPUs, or of its processor; None while a job runs, which would be disturbed.
    With `trouble`, the reason why the machine could not be examined, nothing else is known.
    """

    name: str
    trouble: str = ""
    address: str = ""
    interface: str = ""
    python: str = ""
    docker: str | None = None
    mpirun: str | None = None
    cpus: int = 0
    gpus: int = 0
    gpu_names: tuple[str, ...] = ()
    driver: str | None = None
    libraries: dict[str, str] = {}
    free_bytes: int = 0
    skew: float = 0.0
    runs: str | None = None
    device: DeviceReport | None = None


class LinkReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The speed from `sender` to `receiver` in bytes per second, or in `trouble` the reason why there is none."""

    sender: str
    receiver: str
    bytes_per_second: float = 0.0
    trouble: str = ""


class CheckReport(msgspec.Struct, kw_only=True):
    """The result of a check; `problems` are sentences, and a job may start when there are none.

    `health` has the reports of machines that were examined (`faults.health`), by name.
    """

    machines: list[MachineReport]
    pairs: list[LinkReport]
    problems: list[str]
    health: dict[str, dict[str, Any]] = {}


def check(inventory: Inventory, transport: Transport[Machine], *, seconds: float, deep: bool = False) -> CheckReport:
    """Connect to every machine, and measure the link of every pair for `seconds`.

    Pairs without a common machine are measured at the same time. `deep` examines machines without a job, too.
    """
    with ExitStack() as stack, ThreadPoolExecutor(_THREADS) as pool:
        connections = [transport.connect(machine) for machine in inventory.machines]
        for connection in connections:
            stack.callback(connection.close)
        reports = list(pool.map(_examine, inventory.machines, connections))
        reached = {
            report.name: (report, connection)
            for report, connection in zip(reports, connections, strict=True)
            if not report.trouble
        }

        def measure(pairs: Sequence[tuple[str, str]]) -> Iterable[LinkReport]:
            return pool.map(lambda pair: measure_link(*reached[pair[0]], *reached[pair[1]], seconds), pairs)

        links = measure_links(list(reached), measure)
        health = _examined(reached) if deep else {}
    found = problems(inventory, reports, links, health)
    return CheckReport(machines=reports, pairs=links, problems=found, health=health)


def keep_devices(inventory: Inventory, report: CheckReport, cache: DeviceCache, *, today: str) -> None:
    """Keep the measured devices of the machines, for `plan`."""
    machines = {machine.name: machine for machine in inventory.machines}
    for machine in report.machines:
        if machine.device is not None:
            devices = max(1, len(machine.gpu_names))
            cache.keep(machines[machine.name], machine.device, today=today, devices=devices)


def measure_links(
    names: Sequence[str], measure: Callable[[Sequence[tuple[str, str]]], Iterable[LinkReport]]
) -> list[LinkReport]:
    """Measure the link of every pair; `measure` measures some pairs at the same time.

    The best speed of a link counts: whatever disturbs a measurement makes it slower.
    """
    # A machine in two measurements at once would share its link between them.
    links = [link for pairs in rounds(names) for link in measure(pairs)]
    for _ in range(_REPEATS):
        for link in _slow(links):
            (again,) = measure([(link.sender, link.receiver)])
            links[links.index(link)] = max(link, again, key=lambda report: report.bytes_per_second)
    return links


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return every pair once, in rounds in which each name appears at most once, as in a tournament. Pure.

    >>> rounds(["a", "b", "c"])
    [[('b', 'c')], [('a', 'c')], [('a', 'b')]]

    Source: the circle method for round-robin tournaments.
    """
    # With an odd number of names, the one opposite of None pauses in this round.
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    schedule = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        schedule.append([pair for one, other in opposite if (pair := _in_order(names, one, other)) is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def problems(
    inventory: Inventory,
    reports: Sequence[MachineReport],
    links: Sequence[LinkReport],
    health: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[str]:
    """Return a sentence for everything that would prevent a job or slow it down. Pure."""
    sentences = [report.trouble for report in reports if report.trouble]
    reached = [report for report in reports if not report.trouble]
    machines = {machine.name: machine for machine in inventory.machines}
    for report in reached:
        sentences += _machine_problems(machines[report.name], report)
    seen = {report.name: {"skew": report.skew, "free_bytes": report.free_bytes} for report in reached}
    sentences += map(str, judge({name: {**facts, **health.get(name, {})} for name, facts in seen.items()}))
    # Machines with the same labels and runtime are interchangeable for a job, so their versions must not differ.
    kinds = {report.name: (machines[report.name].labels, machines[report.name].runtime) for report in reached}
    for kind in sorted(set(kinds.values())):
        same = [report for report in reached if kinds[report.name] == kind]
        facts = {report.name: msgspec.structs.asdict(report) for report in same}
        sentences += differences({name: versions_of(its_facts, runtime=kind[1]) for name, its_facts in facts.items()})
    sentences += [f"{link.sender} does not reach {link.receiver}: {link.trouble}" for link in links if link.trouble]
    sentences += [
        f"{link.sender} to {link.receiver}: {shown_speed(link.bytes_per_second)}, others are faster"
        for link in _slow(links)
    ]
    return sentences


def _slow(links: Sequence[LinkReport]) -> list[LinkReport]:
    speeds = sorted(link.bytes_per_second for link in links if not link.trouble)
    median = speeds[len(speeds) // 2] if speeds else 0.0
    return [link for link in links if not link.trouble and link.bytes_per_second < _SLOW_PART * median]


def _machine_problems(machine: Machine, report: MachineReport) -> list[str]:
    sentences = []
    if machine.gpus is not None and report.gpus < machine.gpus:
        sentences.append(f"{report.name}: the inventory says {machine.gpus} GPUs, the machine has {report.gpus}")
    if machine.runtime == "docker" and report.docker is None:
        sentences.append(f"{report.name}: no container engine answers there, and its runtime is docker")
    return sentences


def shown_speed(bytes_per_second: float) -> str:
    """Return a speed in bits per second, as networks are sold.

    >>> shown_speed(1.25e9), shown_speed(12e6)
    ('10.0 Gbit/s', '96 Mbit/s')
    """
    mbit = bytes_per_second * 8 / 1e6
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


def _in_order(names: Sequence[str], one: str | None, other: str | None) -> tuple[str, str] | None:
    if one is None or other is None:
        return None
    return (one, other) if names.index(one) < names.index(other) else (other, one)


def _device(connection: Connection) -> DeviceReport:
    # The import of torch alone may take a minute on a machine whose disk is slow.
    return msgspec.convert(connection.ask({"ask": "device_rates"}, timeout=_DEVICE_SECONDS), DeviceReport)


def _examined(reached: Mapping[str, tuple[MachineReport, Connection]]) -> dict[str, dict[str, Any]]:
    return examination.examine(
        {
            name: (connection, {"address": report.address, "interface": report.interface, "gpus": report.gpus})
            for name, (report, connection) in reached.items()
            # An examination would disturb the job that runs there.
            if report.runs is None
        }
    )


def _examine(machine: Machine, connection: Connection) -> MachineReport:
    try:
        connection.ask({"ask": "facts"})
        # Ask again for the clock: the first answer may have waited for an environment and for imports.
        asked = time.time()
        facts = connection.ask({"ask": "facts"})
        # The machine read its clock about half way between the request and the answer.
        skew = facts["now"] - (asked + time.time()) / 2
        address = address_of(machine, facts)
        details: dict[str, Any] = connection.ask({"ask": "detailed_facts"})
        owner = connection.ask({"ask": "owner"})["owner"]
        device = _device(connection) if owner is None else None
    except HostError as error:
        return MachineReport(name=machine.name, trouble=str(error))
    return MachineReport(
        name=machine.name,
        address=address.address,
        interface=address.interface,
        gpus=facts["gpus"],
        driver=facts["driver"],
        libraries=facts["libraries"],
        free_bytes=facts["free_bytes"],
        skew=skew,
        runs=None if owner is None else f"{owner['job']} of {owner['client']}",
        python=details["python"],
        docker=details["docker"],
        mpirun=details["mpirun"],
        cpus=details["cpus"],
        gpu_names=tuple(details["gpu_names"]),
        device=device,
    )


def measure_link(
    sender: MachineReport, from_sender: Connection, receiver: MachineReport, from_receiver: Connection, seconds: float
) -> LinkReport:
    """Measure the link between two machines for `seconds`, with an open connection to each."""
    # The receiver's port is open to the network; the token tells the sender from other programs.
    token = os.urandom(_TOKEN_BYTES).hex()
    try:
        number = from_receiver.send({"ask": "measure", "role": "listen", "token": token})
        port = from_receiver.wait_for("listening", number)["port"]
        role = {"role": "send", "token": token, "address": receiver.address, "port": port, "seconds": seconds}
        sent = from_sender.ask({"ask": "measure", **role})
        received = from_receiver.wait_for("answer", number)
    except HostError as error:
        return LinkReport(sender=sender.name, receiver=receiver.name, trouble=str(error))
    if trouble := sent.get("trouble") or received.get("trouble"):
        return LinkReport(sender=sender.name, receiver=receiver.name, trouble=trouble)
    # The sender's time: it waits for the last byte's arrival. A receiver that wakes up late finds bytes in its buffers,
    # and its own time would be too short.
    speed = received["moved"] / sent["seconds"]
    return LinkReport(sender=sender.name, receiver=receiver.name, bytes_per_second=speed)
