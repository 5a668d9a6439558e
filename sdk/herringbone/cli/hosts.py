"""`herringbone hosts`: look at the machines of an inventory, and at what runs on them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.cli.table import aligned

if TYPE_CHECKING:
    from herringbone.backends.ssh.check import MachineReport, Report

_EPILOG = """\
check    exits with 1 when something would keep a job from running, or slow it down
jobs     makes the jobs known here: from then on logs, stop, describe and download take their names
"""
_COLUMNS = ("HOST", "ADDRESS", "INTERFACE", "PYTHON", "DOCKER", "CPUS", "GPUS", "DRIVER", "FREE", "CLOCK", "RUNS")
_MEASURE_SECONDS = 0.5


def add_to(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "hosts",
        help="check the machines of an inventory, or find the jobs on them",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, run, text in (
        ("check", _check, "reach every machine, see what it has, and measure the network between every pair"),
        ("jobs", _jobs, "list the jobs on the machines, whoever submitted them"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("inventory", type=Path, help="the YAML file that ssh:FILE names")
        action.add_argument("--json", action="store_true", help="one JSON value")
        action.set_defaults(run=run)


def _check(args: argparse.Namespace) -> int:
    import msgspec

    from herringbone.backends.ssh.check import check
    from herringbone.backends.ssh.choice import read_inventory
    from herringbone.backends.ssh.road import SshRoad, control_folder

    report = check(read_inventory(args.inventory), SshRoad(control=control_folder()), seconds=_MEASURE_SECONDS)
    print(json.dumps(msgspec.to_builtins(report)) if args.json else "\n".join(table(report)))
    return 1 if report.problems else 0


def table(report: Report) -> list[str]:
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
    records = [backend.describe(name) for name in backend.find(args.inventory)]
    if args.json:
        print(json.dumps([{"TrainingJobName": each.name, "TrainingJobStatus": each.status} for each in records]))
        return 0
    print("\n".join(aligned([("NAME", "STATUS"), *((each.name, each.status) for each in records)])))
    return 0
