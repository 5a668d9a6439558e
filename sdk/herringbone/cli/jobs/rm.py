"""`herringbone rm`: remove jobs that are over, and show the space that this frees."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK, USAGE, Age, Status
from herringbone.cli.names import GUESSED, JobName, also_last, with_newest
from herringbone.show.tables import aligned
from herringbone.system.sizes import shown_bytes
from herringbone_contract.errors import JobNameError
from herringbone_contract.masking import printable

if TYPE_CHECKING:
    from herringbone.backends.removal import Removal


class _Removable(JobName):
    """A job, or the whole name of a folder of a job that the index no longer has."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from herringbone.records.home import find_home

        try:
            if os.path.lexists(find_home().job(value).path):
                return value
        # No name of a job; the removal says so.
        except JobNameError:
            return value
        name = super().convert(value, param, ctx)
        if ctx is not None and name != value:
            ctx.meta[GUESSED] = True
        return name


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=_Removable())
@also_last
@click.option("--older-than", type=Age(), metavar="AGE", help="all jobs that ended that long ago, as 30d, 12h or 0m")
@click.option(
    "--status",
    "statuses",
    type=Status(over=True),
    multiple=True,
    metavar="STATUS",
    help="all jobs that are Completed, Failed, Stopped",
)
@click.option(
    "--except",
    "kept",
    multiple=True,
    metavar="NAME",
    type=JobName(),
    help="not this one of those that --older-than and --status chose; may be given several times",
)
@click.option("--keep-model", is_flag=True, help="keep the packed model, and the job in the list")
@click.option("--dry-run", is_flag=True, help="show names and sizes, and remove nothing")
@click.option("-y", "--yes", is_flag=True, help="do not ask before removing jobs that are not named in full")
@json_option("one JSON array: name, size in bytes, model, elsewhere, error")
def command(
    names: tuple[str, ...],
    *,
    last: bool,
    keep_model: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **selection: Any,
) -> int:
    """Remove jobs that are over: their rows and folders here, and their files on the machines of ssh:.

    Name the jobs, or choose them by --older-than and --status, which jobs have to meet both. A job that runs is not
    removed. Files in folders of yours (output_path, checkpoint_s3_uri) and in AWS stay. Exits with 1 when a part could
    not be removed, and with 2 when nothing was.
    """
    from herringbone.backends.removal import remove_jobs

    guessed = last or GUESSED in click.get_current_context().meta
    names = with_newest(names, last=last)
    chosen = selection["older_than"] is not None or bool(selection["statuses"])
    if selection["kept"] and not chosen:
        what = "Names and --except exclude each other." if names else "--except needs --older-than or --status."
        raise click.UsageError(what)
    if chosen == bool(names):
        what = "Names and filters exclude each other" if chosen else "Missing argument 'NAME'"
        raise click.UsageError(f"{what}: name the jobs, or choose all that meet --older-than and --status.")
    if chosen:
        names = _choose(**selection)
    if (chosen or guessed) and not (dry_run or yes):
        planned = remove_jobs(names, keep_model=keep_model, dry_run=True)
        if removable := sum(not removal.error for removal in planned):
            print("\n".join(table(planned, dry_run=True)), file=sys.stderr)
            confirm(removable)
    removals = remove_jobs(names, keep_model=keep_model, dry_run=dry_run)
    errors = [removal for removal in removals if removal.error]
    if as_json:
        print(json.dumps([asdict(removal) for removal in removals]))
    elif len(errors) < len(removals) or not errors:
        print("\n".join(table(removals, dry_run=dry_run)))
    for removal in errors:
        print(f"herringbone: {printable(removal.error)}", file=sys.stderr)
    if not errors:
        return OK
    return USAGE if len(errors) == len(removals) else JOB_FAILED


def table(removals: Sequence[Removal], *, dry_run: bool, what: str = "job") -> list[str]:
    """Return the lines that show removals, or under `dry_run` what they would be. Pure."""
    done = [removal for removal in removals if not removal.error]
    rows = [("NAME", "SIZE", ""), *((removal.name, shown_bytes(removal.size), _note(removal)) for removal in done)]
    jobs = f"{len(done)} {what}{'s' * (len(done) != 1)}"
    total = f"{'would free' if dry_run else 'freed'} {shown_bytes(sum(removal.size for removal in done))} of {jobs}"
    return [*(aligned(rows) if done else ()), total]


def _note(removal: Removal) -> str:
    return printable("; ".join(filter(None, (removal.model and f"keeps {removal.model}", removal.elsewhere))))


def _choose(older_than: int | None, statuses: Sequence[str], kept: Sequence[str]) -> tuple[str, ...]:
    from herringbone.backends.removal import select_jobs

    chosen = select_jobs(older_than=older_than or 0, statuses=statuses)
    return tuple(name for name in chosen if name not in kept)


def confirm(count: int, what: str = "job") -> None:
    """Ask on the terminal. Raises `UsageError` without one, and for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"Nobody can be asked here: add --yes to remove these {what}s, or --dry-run.")
    if not click.confirm(f"remove {f'this {what}' if count == 1 else f'these {count} {what}s'}?", err=True):
        raise click.UsageError("Nothing was removed.")
