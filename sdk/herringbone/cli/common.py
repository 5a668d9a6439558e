"""Exit codes, and options that several verbs share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from click.shell_completion import CompletionItem

from herringbone.cli.commands import Decorated
from herringbone.system.interrupt import CHOICES
from herringbone_contract.errors import EngineError, HostError, ImageError, KubernetesError, SlurmError, near_words
from herringbone_contract.masking import printable

# 2 is the code of mistakes in most commands. 130 is the shell's code for a program that SIGINT ended: 128 + 2.
OK, JOB_FAILED, USAGE, STOPPED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 130
# SageMaker's words. Not the constants of `jobs.index`, whose import loads sqlite.
_ENDS = {"Completed": OK, "Failed": JOB_FAILED, "MaxRuntimeExceeded": TIMED_OUT, "MaxWaitTimeExceeded": TIMED_OUT}


def exit_code(secondary_status: str) -> int:
    """Return the exit code of a command that waited for a job, from the secondary status of the job's end.

    >>> exit_code("Completed"), exit_code("Stopped"), exit_code("MaxRuntimeExceeded")
    (0, 3, 4)
    """
    return _ENDS.get(secondary_status, STOPPED)


@contextmanager
def nothing_started() -> Iterator[None]:
    """Have the command end with the code of mistakes where the block fails: no job was started or changed.

    No engine, a missing image, no Slurm, or a machine that does not answer; in a job, these are failures of the job.
    """
    try:
        yield
    except (EngineError, HostError, ImageError, KubernetesError, SlurmError) as error:
        if os.environ.get("HERRINGBONE_DEBUG"):
            raise
        complain(f"herringbone: {error}")
        raise click.exceptions.Exit(USAGE) from error


def complain(text: str) -> None:
    """Write a message on standard error; it may quote a log, a name or an answer: only its line breaks are ours."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


class Status(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The type of an option that is the status of a job, in letters of any case; with `over`, of one that is over."""

    name = "status"

    def __init__(self, *, over: bool = False) -> None:
        self._over = over

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        words = {word.lower(): word for word in self._words()}
        if (word := words.get(value.lower())) is not None:
            return word
        near = near_words(value.lower(), words)
        hint = f"did you mean {words[near[0]]}?" if near else f"expected one of {', '.join(words.values())}"
        raise click.BadParameter(f"{value!r} is no status{' of a job that is over' * self._over}; {hint}", ctx, param)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(word) for word in self._words() if word.lower().startswith(incomplete.lower())]

    def _words(self) -> tuple[str, ...]:
        from herringbone.backends.listing import STATUSES
        from herringbone.records.index import TERMINAL

        return TERMINAL if self._over else STATUSES


class Age(click.ParamType):  # type: ignore[type-arg] # generic since click 8.4
    """The type of an option that is an age; the command gets seconds."""

    name = "age"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from herringbone.system.times import parse_span

        seconds = value if isinstance(value, int) else parse_span(value)
        if seconds is None:
            raise click.BadParameter(f"{value!r} is no age; write 30d, 12h, 90m or 0m", ctx, param)
        return seconds


def status_option(command: Decorated) -> Decorated:
    """Add `--status`, which may be given several times; the command gets the words as `status`."""
    text = "only jobs of this status, as failed or stopped; may be given several times"
    return click.option("--status", type=Status(), multiple=True, metavar="STATUS", help=text)(command)


def on_interrupt_option(*, default: str | None = None) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds the flag for what Ctrl-C does to the job; `run` and `logs` have it."""
    default_text = default or "stop; on ml.* ask, and detach where there is no terminal"
    # None as the default, because each backend has a default of its own.
    return click.option(
        "--on-interrupt",
        type=click.Choice(CHOICES),
        default=default,
        help=f"what Ctrl-C does to the job (default: {default_text})",
    )
