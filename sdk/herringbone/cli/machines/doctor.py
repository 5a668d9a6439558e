"""`herringbone doctor`: examine this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK

if TYPE_CHECKING:
    from rich.table import Table

    from herringbone.doctor.judgement import Check

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "not used": "dim"}
# A pipe has no width of its own: a reader should not get lines that were broken for a terminal.
_PIPE_WIDTH = 400


@click.command()
@click.option(
    "--aws", is_flag=True, help="ask AWS whose credentials these are; without it, nothing leaves this machine"
)
@json_option("one JSON value")
def command(aws: bool, as_json: bool) -> int:
    """Examine this machine: what works, what is missing, and one fix for each finding.

    Takes about two seconds at most, and prints no secret. Exits with 1 when something is missing that local jobs need;
    a framework, MPI or an engine that is missing is no failure, because not every job needs one.
    """
    from herringbone.doctor import examine, ready
    from herringbone.doctor.probes import find_pages

    checks, pages = examine(aws=aws), find_pages()
    if as_json:
        shown = [summary(check) for check in checks]
        print(json.dumps({"ready": ready(checks), "checks": shown, "pages": pages}))
    else:
        _show(checks)
        print(f"\nThe pages of this release: {pages}" if pages else "")
    return OK if ready(checks) else JOB_FAILED


def summary(check: Check) -> dict[str, object]:
    """Return a check as JSON. Pure."""
    return {
        "name": check.name,
        "state": check.state.value,
        "finding": check.finding,
        "fix": check.fix,
        "required": check.required,
    }


def table(checks: Sequence[Check]) -> Table:
    """Return the table of the checks. Pure."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WHAT", "STATE", "FINDING", "FIX"):
        drawn.add_column(title, overflow="fold", no_wrap=title in ("WHAT", "STATE"))
    for check in checks:
        state = check.state.value
        # Text and not str: brackets in a finding are no markup of rich's.
        drawn.add_row(check.name, Text(state, _STYLES[state]), Text(check.finding), Text(check.fix))
    return drawn


def _show(checks: Sequence[Check]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    with console.capture() as drawn:
        console.print(table(checks))
    # rich fills the last column of a row with blanks.
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))
