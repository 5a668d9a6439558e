"""Looks at all machines of an inventory before a job does: who can be reached, what each has, how they connect."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec

from herringbone.backends.ssh.connection import Visit
from herringbone.backends.ssh.inventory import Inventory, Machine
from herringbone.backends.ssh.rendezvous import place_of
from herringbone.backends.ssh.transport import Road
from herringbone.backends.ssh.versions import differences, versions_of
from herringbone_contract.errors import HostError

MAX_SKEW_SECONDS = 2.0
MIN_FREE_BYTES = 1 << 30
# A link this much slower than the middle one of all will hold up every sum.
_SLOW_PART = 0.5
_THREADS = 64
_TOKEN_BYTES = 16


class MachineReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One machine; with `trouble`, why nothing more is known. `skew` is its clock's lead, in seconds."""

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


class Pair(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How fast `sender` reached `receiver`, in bytes per second; with `trouble`, why it did not."""

    sender: str
    receiver: str
    bytes_per_second: float = 0.0
    trouble: str = ""


class Report(msgspec.Struct, kw_only=True):
    """What a check found; `problems` are sentences, none where a job may start."""

    machines: list[MachineReport]
    pairs: list[Pair]
    problems: list[str]


def check(inventory: Inventory, road: Road[Machine], *, seconds: float) -> Report:
    """Visit every machine, and have every pair of them send for `seconds`, as many at once as have no common end."""
    with ExitStack() as stack, ThreadPoolExecutor(_THREADS) as pool:
        visits = [road.visit(machine) for machine in inventory.machines]
        for visit in visits:
            stack.callback(visit.close)
        reports = list(pool.map(_look, inventory.machines, visits))
        reached = {
            report.name: (report, visit) for report, visit in zip(reports, visits, strict=True) if not report.trouble
        }
        pairs: list[Pair] = []
        for round_ in rounds(list(reached)):
            pairs += pool.map(lambda pair: _measure(*reached[pair[0]], *reached[pair[1]], seconds), round_)
    return Report(machines=reports, pairs=pairs, problems=problems(inventory, reports, pairs))


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return every pair once, in rounds in which each name stands at most once, as in a tournament. Pure.

    >>> rounds(["a", "b", "c"])
    [[('b', 'c')], [('a', 'c')], [('a', 'b')]]
    """
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([tuple_ for one, other in met if (tuple_ := _in_order(names, one, other)) is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def problems(inventory: Inventory, reports: Sequence[MachineReport], pairs: Sequence[Pair]) -> list[str]:
    """Return what would keep a job from running, or slow it down. Pure."""
    found = [report.trouble for report in reports if report.trouble]
    there = [report for report in reports if not report.trouble]
    wanted = {machine.name: machine for machine in inventory.machines}
    for report in there:
        machine = wanted[report.name]
        if machine.gpus is not None and report.gpus < machine.gpus:
            found.append(f"{report.name}: the inventory says {machine.gpus} GPUs, the machine has {report.gpus}")
        if machine.runtime == "docker" and report.docker is None:
            found.append(f"{report.name}: no container engine answers there, and its runtime is docker")
        if abs(report.skew) > MAX_SKEW_SECONDS:
            found.append(f"{report.name}: its clock is {report.skew:+.1f} s off: logs will seem out of order")
        if report.free_bytes < MIN_FREE_BYTES:
            found.append(f"{report.name}: {report.free_bytes / 1e6:.0f} MB are free in its work folder")
    kinds = {report.name: (wanted[report.name].labels, wanted[report.name].runtime) for report in there}
    for kind in sorted(set(kinds.values())):
        same = [report for report in there if kinds[report.name] == kind]
        found += differences({each.name: versions_of(msgspec.structs.asdict(each), runtime=kind[1]) for each in same})
    found += [f"{pair.sender} does not reach {pair.receiver}: {pair.trouble}" for pair in pairs if pair.trouble]
    speeds = sorted(pair.bytes_per_second for pair in pairs if not pair.trouble)
    for pair in pairs:
        if speeds and not pair.trouble and pair.bytes_per_second < _SLOW_PART * speeds[len(speeds) // 2]:
            found.append(f"{pair.sender} to {pair.receiver}: {shown_speed(pair.bytes_per_second)}, others are faster")
    return found


def shown_speed(bytes_per_second: float) -> str:
    """Return a speed as networks are sold.

    >>> shown_speed(1.25e9), shown_speed(12e6)
    ('10.0 Gbit/s', '96 Mbit/s')
    """
    mbit = bytes_per_second * 8 / 1e6
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


def _in_order(names: Sequence[str], one: str | None, other: str | None) -> tuple[str, str] | None:
    if one is None or other is None:
        return None
    return (one, other) if names.index(one) < names.index(other) else (other, one)


def _look(machine: Machine, visit: Visit) -> MachineReport:
    try:
        visit.ask({"ask": "hello"})
        # Once more, now that nothing is made or loaded on the way to an answer.
        asked = time.time()
        hello = visit.ask({"ask": "hello"})
        skew = hello["now"] - (asked + time.time()) / 2
        place = place_of(machine, hello)
        seen: dict[str, Any] = visit.ask({"ask": "survey"})
        owner = visit.ask({"ask": "owner"})["owner"]
    except HostError as error:
        return MachineReport(name=machine.name, trouble=str(error))
    return MachineReport(
        name=machine.name,
        address=place.address,
        interface=place.interface,
        gpus=hello["gpus"],
        driver=hello["driver"],
        libraries=hello["libraries"],
        free_bytes=hello["free_bytes"],
        skew=skew,
        runs=None if owner is None else f"{owner['job']} of {owner['client']}",
        python=seen["python"],
        docker=seen["docker"],
        mpirun=seen["mpirun"],
        cpus=seen["cpus"],
        gpu_names=tuple(seen["gpu_names"]),
    )


def _measure(sender: MachineReport, sending: Visit, receiver: MachineReport, receiving: Visit, seconds: float) -> Pair:
    token = os.urandom(_TOKEN_BYTES).hex()
    try:
        number = receiving.send({"ask": "measure", "role": "listen", "token": token})
        port = receiving.hear("listening", number)["port"]
        words = {"role": "send", "token": token, "address": receiver.address, "port": port, "seconds": seconds}
        sent = sending.ask({"ask": "measure", **words})
        heard = receiving.hear("answer", number)
    except HostError as error:
        return Pair(sender=sender.name, receiver=receiver.name, trouble=str(error))
    if trouble := sent.get("trouble") or heard.get("trouble"):
        return Pair(sender=sender.name, receiver=receiver.name, trouble=trouble)
    return Pair(sender=sender.name, receiver=receiver.name, bytes_per_second=heard["moved"] / heard["seconds"])
