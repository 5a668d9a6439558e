"""`herringbone hosts`: check the machines of an inventory, list the jobs on them, and clean up after jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.cli.common import aligned

if TYPE_CHECKING:
    from herringbone.backends.ssh.check import CheckReport, MachineReport
    from herringbone.backends.ssh.clean import CleanupReport

_EPILOG = """\
check    exits with 1 when something would stop a job from running, or slow it down
jobs     makes the jobs known to this machine: then logs, stop, describe and download take their names
clean    removes jobs that are over, fetched or not, and the code, data and environments that no other job
         uses. It removes nothing of a running job. Exits with 1 when a machine cannot be reached
"""
_COLUMNS = ("HOST", "ADDRESS", "INTERFACE", "PYTHON", "DOCKER", "CPUS", "GPUS", "DRIVER", "FREE", "CLOCK", "RUNS")
_MEASURE_SECONDS = 0.5


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "hosts",
        help="check the machines of an inventory, find the jobs on them, or clean up after them",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, run, text in (
        ("check", _check, "connect to every machine, show its equipment, and measure the network between every pair"),
        ("jobs", _jobs, "list the jobs on the machines, from any submitter"),
        ("clean", _clean, "remove stale files of jobs from the machines' work folders, and show the freed space"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("inventory", type=Path, help="the YAML file that ssh:FILE names")
        action.add_argument("--json", action="store_true", help="one JSON value")
        # The verb itself has no function: `main` calls that of the chosen action.
        action.set_defaults(run=run)
        if run is _clean:
            action.add_argument(
                "--older-than", default="30d", help="the least age, as 30d, 12h or 0m (default: 30d)", metavar="AGE"
            )
            action.add_argument("--dry-run", action="store_true", help="show the result, and remove nothing")


def _check(args: argparse.Namespace) -> int:
    # The actions import their modules when they run, so that the other verbs start fast.
    import msgspec

    from herringbone.backends.ssh.check import check
    from herringbone.backends.ssh.inventory import read_inventory
    from herringbone.backends.ssh.openssh import OpenSSHTransport, control_folder

    report = check(read_inventory(args.inventory), OpenSSHTransport(control=control_folder()), seconds=_MEASURE_SECONDS)
    print(json.dumps(msgspec.to_builtins(report)) if args.json else "\n".join(table(report)))
    return 1 if report.problems else 0


def table(report: CheckReport) -> list[str]:
    """Return the lines that show the result of a check. Pure."""
    from herringbone.backends.ssh.check import shown_speed

    lines = aligned([_COLUMNS, *map(_row, report.machines)])
    if report.pairs:
        pairs = [("FROM", "TO", "SPEED")]
        pairs += [
            (pair.sender, pair.receiver, pair.trouble or shown_speed(pair.bytes_per_second)) for pair in report.pairs
        ]
        lines += ["", *aligned(pairs)]
    return lines + [f"problem: {problem}" for problem in report.problems]


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


def _jobs(args: argparse.Namespace) -> int:
    from herringbone.backends.ssh.backend import make_backend

    backend = make_backend()
    records = [backend.describe(name) for name in backend.find_jobs(args.inventory)]
    if args.json:
        print(json.dumps([{"TrainingJobName": job.name, "TrainingJobStatus": job.status} for job in records]))
        return 0
    print("\n".join(aligned([("NAME", "STATUS"), *((job.name, job.status) for job in records)])))
    return 0


def _clean(args: argparse.Namespace) -> int:
    import msgspec

    from herringbone.backends.ssh.clean import clean, parse_age
    from herringbone.backends.ssh.inventory import read_inventory
    from herringbone.backends.ssh.openssh import OpenSSHTransport, control_folder

    older = parse_age(args.older_than)
    machines = read_inventory(args.inventory).machines
    cleaned = clean(machines, OpenSSHTransport(control=control_folder()), older=older, dry=args.dry_run)
    print(
        json.dumps(msgspec.to_builtins(cleaned)) if args.json else "\n".join(cleaned_table(cleaned, dry=args.dry_run))
    )
    return int(any(machine.trouble or any(item.trouble for item in machine.stale_files) for machine in cleaned))


def cleaned_table(cleaned: Sequence[CleanupReport], *, dry: bool) -> list[str]:
    """Return the lines that show the removed items, or under `dry` the items to remove. Pure."""
    rows = [("HOST", "KIND", "NAME", "AGE", "SIZE")]
    for machine in cleaned:
        rows += [
            (machine.name, item.kind, item.name, f"{item.age / 86400:.1f} d", _megabytes(item.size))
            for item in machine.stale_files
        ]
    removed = [item for machine in cleaned for item in machine.stale_files if not item.trouble]
    lines = aligned(rows) if len(rows) > 1 else []
    lines.append(f"{'would free' if dry else 'freed'} {_megabytes(sum(item.size for item in removed))}")
    lines += [
        f"{machine.name}: runs {machine.runs}: code, data and environments stay" for machine in cleaned if machine.runs
    ]
    troubles = [machine.trouble for machine in cleaned if machine.trouble]
    troubles += [
        f"{machine.name}: {item.trouble}" for machine in cleaned for item in machine.stale_files if item.trouble
    ]
    return lines + [f"problem: {trouble}" for trouble in troubles]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
