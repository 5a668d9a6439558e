"""`herringbone page`: show the jobs in a browser."""

from __future__ import annotations

from functools import partial

import click

from herringbone.cli.names import JobName, also_last, with_newest
from herringbone_contract.errors import UsageError


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]", type=JobName())
@also_last
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="the port of 127.0.0.1 (default: a free one)"
)
@click.option("--no-open", is_flag=True, help="print the address, and open no browser")
@click.option(
    "--connections",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="connections with the token at once, and as many of strangers (default: 64, and 256 of strangers)",
)
def command(names: tuple[str, ...], *, last: bool, port: int, no_open: bool, connections: int | None) -> int:
    """Serve a page on this machine that shows the jobs: all, one, or several laid over each other; until Ctrl-C.

    Only who has the printed address, with its token, can read the page. From another machine, ssh -L forwards the port;
    the command prints the line.
    """
    try:
        from herringbone.views.page.serve import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"the page needs {error.name}: run pip install '.[page]' in your clone of Herringbone; "
            "`herringbone report NAME` writes the page of one job without it"
        ) from None
    from herringbone.api.job import attach

    names = with_newest(names, last=last)
    for name in names:
        # A mistyped name is an error here, not on the page.
        attach(name)
    say = partial(print, flush=True)
    serve(names, port=port, opens_browser=not no_open, say=say, connections=connections)
    return 0
