"""The NAME of a job or a tuning job on the command line: whole, its beginning, or `-` for the newest one."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import click
from click.shell_completion import CompletionItem

from herringbone.cli.commands import Decorated
from herringbone_contract.errors import HerringboneError

also_last = click.option("--last", is_flag=True, help="the newest job; also as the NAME -")


# A key of the context's `meta`: `-` or the beginning of a name may be another one than the user has in mind.
GUESSED = "herringbone.guessed"


class JobName(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The type of an argument that is a job: the command gets the whole name, and the shell completes it.

    >>> click.argument("names", nargs=-1, type=JobName())            # doctest: +SKIP

    Only names in this machine's index are completed; other words stay as they are, and a service is asked about them.
    """

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        from herringbone.records.short_names import find_name

        return find_name(value, _known_names())

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        # An error would be shown in the middle of the line that the user types.
        with contextlib.suppress(HerringboneError):
            return [CompletionItem(name) for name in _known_names() if name.startswith(incomplete)]
        return []


class TuningName(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The type of an argument that is a tuning job: whole, its beginning, or `-` for the newest one."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        from herringbone.records.short_names import find_name

        name = find_name(value, _tuning_names(), kind="tuning job")
        if ctx is not None and name != value:
            ctx.meta[GUESSED] = True
        return name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(name) for name in _tuning_names() if name.startswith(incomplete)]


def job_name(command: Decorated) -> Decorated:
    """Add the argument NAME and the flag `--last`: a decorator, whose command gets the whole name as `name`."""

    @functools.wraps(command)
    def with_name(*args: Any, name: str | None, last: bool, **rest: Any) -> Any:
        if last == (name is not None):
            what = "NAME and --last are two jobs" if last else "Missing argument 'NAME'"
            raise click.UsageError(f"{what}: write the job's name, its beginning, or --last for the newest job.")
        return command(*args, name=JobName().convert("-", None, None) if last else name, **rest)

    # The last decorator's parameter is the first in the usage.
    with_last = click.option("--last", is_flag=True, help="the newest job, instead of NAME; also as the NAME -")(
        with_name
    )
    return click.argument("name", required=False, metavar="NAME", type=JobName())(with_last)  # type: ignore[return-value]


def job_names(command: Decorated) -> Decorated:
    """Add the argument NAME... and the flag `--last`: a decorator, whose command gets one or more whole `names`."""

    @functools.wraps(command)
    def with_names(*args: Any, names: tuple[str, ...], last: bool, **rest: Any) -> Any:
        names = with_newest(names, last=last)
        if not names:
            raise click.UsageError(
                "Missing argument 'NAME...': write one or more jobs' names, or --last for the newest job."
            )
        return command(*args, names=names, **rest)

    return click.argument("names", nargs=-1, metavar="NAME...", type=JobName())(also_last(with_names))  # type: ignore[return-value]


def with_newest(names: tuple[str, ...], *, last: bool) -> tuple[str, ...]:
    """Return the names, and with `--last` that of the newest job."""
    return (*names, JobName().convert("-", None, None)) if last else names


def _known_names() -> list[str]:
    # Imported here, so that help starts without sqlite.
    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex

    return JobIndex(find_home().index).names()


def _tuning_names() -> list[str]:
    """Return the names of all tuning jobs, the newest first, without asking SageMaker about its own."""
    from herringbone.records.home import find_home
    from herringbone.tuner.tuning import newest_names

    return newest_names(find_home())
