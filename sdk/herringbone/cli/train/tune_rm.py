"""`herringbone tune rm`: remove tuning jobs that are over, with the jobs of their trials."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK, USAGE, Age
from herringbone.cli.jobs.rm import confirm, table
from herringbone.cli.names import GUESSED, TuningName
from herringbone_contract.masking import printable

_WHAT = "tuning job"


@click.command("rm", short_help="remove tuning jobs that are over, with their trials")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=TuningName())
@click.option("--older-than", type=Age(), metavar="AGE", help="all that ended that long ago, as 30d, 12h or 0m")
@click.option("--dry-run", is_flag=True, help="show names and sizes, and remove nothing")
@click.option("-y", "--yes", is_flag=True, help="do not ask before removing tuning jobs that are not named in full")
@json_option("one JSON array: name, size in bytes, model, elsewhere, error")
def command(names: tuple[str, ...], *, older_than: int | None, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove tuning jobs that are over, and the jobs of their trials with their models.

    To keep the best model, download it first. One that is not over is not removed. SageMaker's tuning jobs go from this
    machine's list only. Exits with 1 when a part could not be removed, and with 2 when nothing was.
    """
    from herringbone.records.home import find_home
    from herringbone.tuner.removal import remove_tunings, select_tunings

    home = find_home()
    if (older_than is None) != bool(names):
        what = "Missing argument 'NAME'" if older_than is None else "Names and --older-than exclude each other"
        raise click.UsageError(f"{what}: name the tuning jobs, or choose all that meet --older-than.")
    asks = older_than is not None or GUESSED in click.get_current_context().meta
    chosen = names if older_than is None else select_tunings(older_than, home)
    if asks and not (dry_run or yes):
        planned = remove_tunings(chosen, home, dry_run=True)
        if removable := sum(not removal.error for removal in planned):
            print("\n".join(table(planned, dry_run=True, what=_WHAT)), file=sys.stderr)
            confirm(removable, _WHAT)
    removals = remove_tunings(chosen, home, dry_run=dry_run)
    errors = [removal for removal in removals if removal.error]
    if as_json:
        print(json.dumps([asdict(removal) for removal in removals]))
    elif len(errors) < len(removals) or not errors:
        print("\n".join(table(removals, dry_run=dry_run, what=_WHAT)))
    for removal in errors:
        print(f"herringbone: {printable(removal.error)}", file=sys.stderr)
    if not errors:
        return OK
    return USAGE if len(errors) == len(removals) else JOB_FAILED
