"""The shapes of commands that all verbs share: the group that loads verbs lazily, and `--json`.

This module imports click and names of errors alone, so that `herringbone --help` starts fast.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from herringbone_contract.errors import near_words

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
# Wider lines are hard to read, however wide the terminal is.
MAX_HELP_WIDTH = 120
# The variable by which a shell asks for completions.
COMPLETION_VARIABLE = "_HERRINGBONE_COMPLETE"


class LazyGroup(click.Group):
    """A group of verbs, each of which is the `command` of a module of its own, imported when it is used.

    >>> LazyGroup({"ls": ("herringbone.cli.jobs.ls", "list the jobs")}, name="herringbone")
    <LazyGroup herringbone>

    `verbs` maps each verb to its module and its line in the help, so that help imports no verb. The words after `--`
    are not parsed: they are `ctx.obj`, and an error for all commands but a `JobCommand` or a `CommandWithWords`.
    """

    def __init__(self, verbs: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self._verbs = verbs

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        if "--" in args:
            cut = args.index("--")
            args, words = args[:cut], args[cut + 1 :]
        ctx.obj = words
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._verbs:
            return None
        module, line = self._verbs[cmd_name]
        command: click.Command = importlib.import_module(module).command
        command.help = command.help or f"{line[:1].upper()}{line[1:]}."
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._verbs and not ctx.resilient_parsing:
            # click looks for near names among loaded commands, of which there are none here.
            near = near_words(args[0], self._verbs)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if (
            ctx.obj
            and command is not None
            and not isinstance(command, (JobCommand, CommandWithWords))
            and not ctx.resilient_parsing
        ):
            raise click.UsageError(f"{name} takes no arguments after --", click.Context(command, ctx, name))
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in self._verbs.items()])


class CommandWithWords(click.Command):
    """A verb that runs a command: its words after `--`, which `@click.pass_obj` hands over.

    >>> CommandWithWords("shell", callback=print)
    <CommandWithWords shell>
    """

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND ARGUMENTS]"]


class JobCommand(click.Command):
    """A verb that describes a job: its words after `--` are hyperparameters, which `@click.pass_obj` hands over.

    >>> JobCommand("run", callback=print)
    <JobCommand run>
    """

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- HYPERPARAMETERS]"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(_forgotten_dashes(ctx, words, error), ctx) from None


def _forgotten_dashes(ctx: click.Context, words: list[str], error: click.NoSuchOption) -> str:
    """Return the message for an option that the verb does not have: most often, it is one of the script's."""
    # Any word resembles one of our options a little: only a misspelt one is worth a question.
    near = near_words(error.option_name, error.possibilities or (), cutoff=0.8)
    what = f"No such option {error.option_name!r}."
    if near:
        return f"{what} Did you mean {near[0]}?"
    place = next((at for at, word in enumerate(words) if word.startswith(error.option_name)), len(words))
    before, after = words[:place], words[place:]
    if not any(map(_is_job, before)):
        # The script is among the words behind, or was not named at all.
        job = next(filter(_is_job, after), "SCRIPT")
        before, after = [*before, job], [word for word in after if word != job]
    command = f"{ctx.command_path} {shlex.join(before)} -- {shlex.join(after)}"
    return f"{what} What the script takes comes after `--`: {command}"


def _is_job(word: str) -> bool:
    """Report whether a word looks like a script or a job file."""
    return word.endswith((".py", ".yaml", ".yml", ".json", ".sh"))


def mistake(error: click.UsageError) -> str:
    """Return the text for a mistake in the call: the usage of the verb, and one line that says what is wrong."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    text = f"herringbone: {error.format_message()}"
    if error.ctx is None:
        return text
    return f"{error.ctx.get_usage()}\n{text}\nTry '{error.ctx.command_path} --help' for help."


def version_option() -> click.Option:
    """Return the option `--version`, which shows the version of the installed package and ends the program."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001 - the signature is click's
        if not value or ctx.resilient_parsing:
            return
        # Imported here, because it takes longer than the whole help.
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"herringbone {version('herringbone')}")
        except PackageNotFoundError:
            print("herringbone, not installed: run from its source")
        ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version and exit."
    )


def json_option(text: str) -> Callable[[Decorated], Decorated]:
    """Return the decorator that adds `--json`; the command gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)
