"""`herringbone hosts`: check the machines of an inventory, list the jobs on them, and clean up after jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import Age
from herringbone.show.tables import aligned, show_table
from herringbone.system.sizes import shown_bytes, shown_memory

if TYPE_CHECKING:
    from herringbone.backends.ssh.inspection.check import CheckReport, MachineReport
    from herringbone.backends.ssh.inspection.clean import CleanupReport
    from herringbone.records.index import JobRecord

_COLUMNS = ("HOST", "ADDRESS", "INTERFACE", "PYTHON", "DOCKER", "CPUS", "GPUS", "DRIVER", "FREE", "CLOCK", "RUNS")
_DEVICE_COLUMNS = ("HOST", "DEVICE", "MEMORY", "TFLOP/S", "BANDWIDTH")
_MEASURE_SECONDS = 0.5
_THREADS = 8
_CLUSTER = "k8s:"


_inventory = click.argument("inventory", type=click.Path(path_type=Path))


@click.group()
def command() -> None:
    """Check the machines of an inventory, find the jobs on them, or clean up after them.

    INVENTORY is the YAML file that the instance type ssh:FILE names.
    """


@command.command(short_help="connect to every machine, show its equipment, and measure the network")
@_inventory
@click.option("--deep", is_flag=True, help="also examine memory, disks, devices and an all-reduce, as jobs do first")
@json_option("one JSON value")
@click.option("--role", is_flag=True, help="of k8s: print the Role that suffices for jobs, as YAML")
@click.option("--context", metavar="NAME", help="of k8s: a context of the kubeconfig, instead of its current one")
@click.option("--claim", metavar="pvc://CLAIM/FOLDER", help="of k8s: the claim for results")
@click.option("--image", metavar="IMAGE", help="of k8s: the image for the two pods of --deep")
@click.option("--gpus", type=click.IntRange(1), help="of k8s: GPUs of each pod of --deep")
def check(inventory: Path, deep: bool, as_json: bool, **of_cluster: Any) -> int:
    """Connect to every machine, show its equipment, and measure its device and the network between every pair.

    The device's rates are kept for `herringbone plan --measure`. A machine on which a job runs is not measured. Exits
    with 1 when something would stop a job from running, or slow it down.

    k8s:NAMESPACE instead of an inventory: show versions, nodes and quotas of the cluster, and whatever the account may
    not do. With --deep, a job of two pods examines them and their link, and is removed again.
    """
    if str(inventory).startswith(_CLUSTER):
        from herringbone.cli.machines.cluster_check import check_cluster

        return check_cluster(str(inventory), deep=deep, as_json=as_json, **of_cluster)
    if given := [name for name, value in of_cluster.items() if value]:
        raise click.UsageError(f"--{given[0]} is of {_CLUSTER}NAMESPACE, not of an inventory")
    # The actions import their modules when they run, so that the other verbs start fast.
    import msgspec

    from herringbone.backends.ssh.inspection import check as checking
    from herringbone.backends.ssh.machines.device_cache import DeviceCache
    from herringbone.backends.ssh.machines.inventory import read_inventory
    from herringbone.backends.ssh.transport.openssh import OpenSSHTransport, control_folder
    from herringbone.records.home import find_home

    transport = OpenSSHTransport(control=control_folder())
    machines = read_inventory(inventory)
    report = checking.check(machines, transport, seconds=_MEASURE_SECONDS, deep=deep)
    checking.keep_devices(
        machines, report, DeviceCache(find_home().cache / "devices"), today=str(datetime.now(timezone.utc).date())
    )
    print(json.dumps(msgspec.to_builtins(report)) if as_json else "\n".join(table(report)))
    return 1 if report.problems else 0


def table(report: CheckReport) -> list[str]:
    """Return the lines that show the result of a check. Pure."""
    from herringbone.backends.ssh.inspection.check import shown_speed
    from herringbone_contract.faults import health

    lines = aligned([_COLUMNS, *map(_row, report.machines)])
    devices = [_device_row(machine) for machine in report.machines if machine.device is not None]
    if devices:
        lines += ["", *aligned([_DEVICE_COLUMNS, *devices])]
    if report.pairs:
        pairs = [("FROM", "TO", "SPEED")]
        pairs += [
            (pair.sender, pair.receiver, pair.trouble or shown_speed(pair.bytes_per_second)) for pair in report.pairs
        ]
        lines += ["", *aligned(pairs)]
    lines += [f"health: {name}: {health.line(machine)}" for name, machine in report.health.items()]
    return lines + [f"problem: {problem}" for problem in report.problems]


def _device_row(machine: MachineReport) -> tuple[str, ...]:
    device = machine.device
    assert device is not None
    name = f"{device.name} ({device.model})" if device.model else device.name
    if not device.operations_per_second:
        return (machine.name, name, shown_memory(device.memory_bytes), device.trouble, "-")
    rates = ", ".join(f"{rate / 1e12:.3g} {dtype}" for dtype, rate in device.operations_per_second.items())
    return (machine.name, name, shown_memory(device.memory_bytes), rates, f"{device.bytes_per_second / 1e9:.3g} GB/s")


def _row(machine: MachineReport) -> tuple[str, ...]:
    # Nothing is known about a machine that did not answer.
    if machine.trouble:
        return (machine.name, *("?" for _ in _COLUMNS[1:]))
    return (
        machine.name,
        machine.address,
        machine.interface or "?",
        machine.python,
        machine.docker or "-",
        str(machine.cpus),
        str(machine.gpus),
        machine.driver or "-",
        f"{machine.free_bytes / 1e9:.1f} GB",
        # Adding 0.0 turns -0.0 into 0.0, so that an exact clock shows +0.0.
        f"{round(machine.skew, 1) + 0.0:+.1f} s",
        machine.runs or "-",
    )


@command.command(short_help="list the jobs on the machines, from any submitter")
@click.argument("place", metavar="INVENTORY|k8s:NAMESPACE")
@json_option("one JSON value")
def jobs(place: str, as_json: bool) -> int:
    """List the jobs on the machines, or in a namespace, from any submitter, and make them known to this machine.

    After that, logs, stop, describe and download take their names.
    """
    names, describe = _found(place)
    with ThreadPoolExecutor(_THREADS) as pool:
        records = list(pool.map(describe, names))
    if as_json:
        print(json.dumps([{"TrainingJobName": job.name, "TrainingJobStatus": job.status} for job in records]))
        return 0
    show_table([("NAME", "STATUS"), *((job.name, job.status) for job in records)])
    return 0


def _found(place: str) -> tuple[list[str], Callable[[str], JobRecord]]:
    if place.startswith("k8s:"):
        from herringbone.backends.kubernetes import backend as pods

        cluster = pods.make_backend()
        return cluster.find_jobs(place), cluster.describe
    from herringbone.backends.ssh.backend import make_backend

    machines = make_backend()
    return machines.find_jobs(Path(place)), machines.describe


@command.command(short_help="remove stale files of jobs from the machines' work folders, and show the freed space")
@_inventory
@click.option(
    "--older-than", type=Age(), default="30d", help="the least age, as 30d, 12h or 0m (default: 30d)", metavar="AGE"
)
@click.option("--dry-run", is_flag=True, help="show the result, and remove nothing")
@json_option("one JSON value")
def clean(inventory: Path, older_than: int, dry_run: bool, as_json: bool) -> int:
    """Remove stale files of jobs from the machines' work folders, and show the freed space.

    These are jobs that are over, fetched or not, and the code, data and environments that no other job uses. Nothing
    of a running job is removed. Exits with 1 when a machine cannot be reached.
    """
    import msgspec

    from herringbone.backends.ssh.inspection import clean as cleaning
    from herringbone.backends.ssh.machines.inventory import read_inventory
    from herringbone.backends.ssh.transport.openssh import OpenSSHTransport, control_folder

    machines = read_inventory(inventory).machines
    cleaned = cleaning.clean(machines, OpenSSHTransport(control=control_folder()), older=older_than, dry=dry_run)
    print(json.dumps(msgspec.to_builtins(cleaned)) if as_json else "\n".join(cleaned_table(cleaned, dry=dry_run)))
    return int(any(machine.trouble or any(item.trouble for item in machine.stale_files) for machine in cleaned))


def cleaned_table(cleaned: Sequence[CleanupReport], *, dry: bool) -> list[str]:
    """Return the lines that show the removed items, or under `dry` the items to remove. Pure."""
    rows = [("HOST", "KIND", "NAME", "AGE", "SIZE")]
    for machine in cleaned:
        rows += [
            (machine.name, item.kind, item.name, f"{item.age / 86400:.1f} d", shown_bytes(item.size))
            for item in machine.stale_files
        ]
    removed = [item for machine in cleaned for item in machine.stale_files if not item.trouble]
    lines = aligned(rows) if len(rows) > 1 else []
    lines.append(f"{'would free' if dry else 'freed'} {shown_bytes(sum(item.size for item in removed))}")
    lines += [
        f"{machine.name}: runs {machine.runs}: code, data and environments stay" for machine in cleaned if machine.runs
    ]
    troubles = [machine.trouble for machine in cleaned if machine.trouble]
    troubles += [
        f"{machine.name}: {item.trouble}" for machine in cleaned for item in machine.stale_files if item.trouble
    ]
    return lines + [f"problem: {trouble}" for trouble in troubles]
