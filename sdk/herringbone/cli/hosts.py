"""`herringbone hosts`: look at the machines of an inventory, at what runs on them, and at what it left."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.cli.table import aligned

if TYPE_CHECKING:
    from herringbone.backends.ssh.check import CheckReport, MachineReport
    from herringbone.backends.ssh.clean import CleanupReport

_EPILOG = """\
check    exits with 1 when something would keep a job from running, or slow it down
jobs     makes the jobs known here: from then on logs, stop, describe and download take their names
clean    removes jobs that are over, whether they were fetched or not, and the code, data and environments
         that no remaining job uses; nothing of a job that runs. Exits with 1 when a machine cannot be reached
"""
_COLUMNS = ("HOST", "ADDRESS", "INTERFACE", "PYTHON", "DOCKER", "CPUS", "GPUS", "DRIVER", "FREE", "CLOCK", "RUNS")
_MEASURE_SECONDS = 0.5


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "hosts",
        help="check the machines of an inventory, find the jobs on them, or clean up behind them",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, run, text in (
        ("check", _check, "reach every machine, see what it has, and measure the network between every pair"),
        ("jobs", _jobs, "list the jobs on the machines, whoever submitted them"),
        ("clean", _clean, "remove what jobs left in the machines' work folders, and show what that frees"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("inventory", type=Path, help="the YAML file that ssh:FILE names")
        action.add_argument("--json", action="store_true", help="one JSON value")
        action.set_defaults(run=run)
        if run is _clean:
            action.add_argument("--older-than", default="30d", help="as 30d, 12h or 0m (default: 30d)", metavar="AGE")
            action.add_argument("--dry-run", action="store_true", help="show it, and remove nothing")


def _check(args: argparse.Namespace) -> int:
    import msgspec

    from herringbone.backends.ssh.check import check
    from herringbone.backends.ssh.inventory import read_inventory
    from herringbone.backends.ssh.openssh import OpenSSHTransport, control_folder

    report = check(read_inventory(args.inventory), OpenSSHTransport(control=control_folder()), seconds=_MEASURE_SECONDS)
    print(json.dumps(msgspec.to_builtins(report)) if args.json else "\n".join(table(report)))
    return 1 if report.problems else 0


def table(report: CheckReport) -> list[str]:
    """Return the check's result, for people. Pure."""
    from herringbone.backends.ssh.check import shown_speed

    lines = aligned([_COLUMNS, *map(_row, report.machines)])
    if report.pairs:
        pairs = [("FROM", "TO", "SPEED")]
        pairs += [(p.sender, p.receiver, p.trouble or shown_speed(p.bytes_per_second)) for p in report.pairs]
        lines += ["", *aligned(pairs)]
    return lines + [f"problem: {problem}" for problem in report.problems]


def _row(machine: MachineReport) -> tuple[str, ...]:
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
        f"{round(machine.skew, 1) + 0.0:+.1f} s",
        machine.runs or "-",
    )


def _jobs(args: argparse.Namespace) -> int:
    from herringbone.backends.ssh.backend import make_backend

    backend = make_backend()
    records = [backend.describe(name) for name in backend.find_jobs(args.inventory)]
    if args.json:
        print(json.dumps([{"TrainingJobName": each.name, "TrainingJobStatus": each.status} for each in records]))
        return 0
    print("\n".join(aligned([("NAME", "STATUS"), *((each.name, each.status) for each in records)])))
    return 0


def _clean(args: argparse.Namespace) -> int:
    import msgspec

    from herringbone.backends.ssh.clean import clean, parse_age
    from herringbone.backends.ssh.inventory import read_inventory
    from herringbone.backends.ssh.openssh import OpenSSHTransport, control_folder

    older = parse_age(args.older_than)
    machines = read_inventory(args.inventory).machines
    found = clean(machines, OpenSSHTransport(control=control_folder()), older=older, dry=args.dry_run)
    print(json.dumps(msgspec.to_builtins(found)) if args.json else "\n".join(cleaned_table(found, dry=args.dry_run)))
    return int(any(machine.trouble or any(each.trouble for each in machine.stale_files) for machine in found))


def cleaned_table(found: Sequence[CleanupReport], *, dry: bool) -> list[str]:
    """Return what went, or would go, for people. Pure."""
    rows = [("HOST", "KIND", "NAME", "AGE", "SIZE")]
    for machine in found:
        rows += [
            (machine.name, each.kind, each.name, f"{each.age / 86400:.1f} d", _megabytes(each.size))
            for each in machine.stale_files
        ]
    gone = [each for machine in found for each in machine.stale_files if not each.trouble]
    lines = aligned(rows) if len(rows) > 1 else []
    lines.append(f"{'would free' if dry else 'freed'} {_megabytes(sum(each.size for each in gone))}")
    lines += [
        f"{machine.name}: runs {machine.runs}: code, data and environments stay" for machine in found if machine.runs
    ]
    troubles = [machine.trouble for machine in found if machine.trouble]
    troubles += [f"{machine.name}: {each.trouble}" for machine in found for each in machine.stale_files if each.trouble]
    return lines + [f"problem: {trouble}" for trouble in troubles]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
