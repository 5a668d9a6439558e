"""`herringbone completion`: print the script with which a shell completes herringbone's verbs, flags and jobs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from herringbone.cli.commands import COMPLETION_VARIABLE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, /, shell: str) -> int:
    """Print the script with which a SHELL completes verbs, flags and the names of jobs.

    \b
    herringbone completion bash >> ~/.bashrc
    herringbone completion zsh >> ~/.zshrc
    herringbone completion fish > ~/.config/fish/completions/herringbone.fish
    """
    root = ctx.find_root()
    completer = get_completion_class(shell)
    assert completer is not None
    print(completer(root.command, {}, "herringbone", COMPLETION_VARIABLE).source(), end="")
    return 0
