"""`herringbone help`: show the help of the program, or of a verb."""

from __future__ import annotations

import click


@click.command()
@click.argument("verbs", nargs=-1, metavar="[VERB]")
@click.pass_context
def command(ctx: click.Context, /, verbs: tuple[str, ...]) -> int:
    """Show the help of a VERB, such as `run` or `images build`; without one, of herringbone."""
    context = ctx.find_root()
    for verb in verbs:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no verbs of its own.", context)
        _, chosen, _ = group.resolve_command(context, [verb])
        # `resolve_command` has raised for an unknown verb.
        assert chosen is not None
        context = click.Context(chosen, parent=context, info_name=verb)
    print(context.get_help())
    return 0
