"""The NAME of a job on the command line."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from herringbone.cli.commands import Decorated


class JobName(click.ParamType[str, str]):
    """The name of a job; the shell completes it from the index of jobs."""

    name = "name"

    # The signature is click's.
    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        # Imported here, so that help starts without sqlite.
        from herringbone.jobs.home import find_home
        from herringbone.jobs.index import JobIndex

        names = [record.name for record in JobIndex(find_home().index).summaries()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def job_name(command: Decorated) -> Decorated:
    """Add the argument NAME, a job: a decorator, whose command gets `name`."""
    return click.argument("name", type=JobName())(command)
