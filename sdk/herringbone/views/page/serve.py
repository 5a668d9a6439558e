"""Serve the page on this machine's loopback until Ctrl-C."""

from __future__ import annotations

import html
import os
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import uvicorn

from herringbone.records.home import find_home
from herringbone.system.connections import Limits, Room, fitted, open_files
from herringbone.system.web_server import CountingListener, web_config
from herringbone.views.page.server import Server
from herringbone_contract.errors import InputError

_END_SECONDS = 1


def serve(
    names: tuple[str, ...],
    *,
    port: int,
    opens_browser: bool,
    say: Callable[[str], None],
    connections: int | None = None,
) -> None:
    """Serve the page of all jobs, or of the jobs `names`, until Ctrl-C; port 0 takes a free one.

    >>> serve((), port=0, opens_browser=False, say=print)            # doctest: +SKIP
    http://127.0.0.1:40123/?token=...

    `say` gets the address. `connections` is how many browsers with the token may hold, and as many may strangers.
    Raises `InputError` for a port that is taken, and for more connections than this process may open.
    """
    count = connections
    limits = None if count is None else Limits(strangers=count, of_caller=count, callers=count)
    room = Room(fitted(limits, open_files()))
    listener = CountingListener(_listen(port), room)
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(32)
    server = Server(find_home())
    config = web_config(
        server.app(token),
        room,
        # Streams end by themselves; a download that does not must not keep Ctrl-C waiting.
        timeout_graceful_shutdown=_END_SECONDS,
        lifespan="on",
    )
    runner = _Runner(config, server)
    address = f"http://127.0.0.1:{port}{_path(names)}{'&' if len(names) > 1 else '?'}token={token}"
    say(address)
    say(f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, and open the same address there")
    say("Ctrl-C ends it")
    # uvicorn ends the server at Ctrl-C, and then passes Ctrl-C on.
    with closing(listener), ExitStack() as stack, suppress(KeyboardInterrupt):
        if opens_browser and has_browser():
            webbrowser.open(stack.enter_context(_opener(address)))
        runner.run(sockets=[listener])


def has_browser() -> bool:
    """Report whether a browser can show a window here: not in an SSH session, and not without a display."""
    if os.environ.get("SSH_CONNECTION") or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


@contextmanager
def _opener(address: str) -> Iterator[str]:
    """Yield the address of a private file that leads to `address`: everybody can read a browser's arguments."""
    with tempfile.NamedTemporaryFile("w", prefix="herringbone-", suffix=".html") as file:
        target = html.escape(address)
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Go on</a>')
        file.flush()
        yield Path(file.name).as_uri()


class _Runner(uvicorn.Server):
    """A server whose streams end when it is told to."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._streams = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.end()
        await super().shutdown(sockets)


def _listen(port: int) -> socket.socket:
    try:
        # From now on a browser that is quicker than the server waits, and is not refused.
        return socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise InputError(f"port {port} of 127.0.0.1: {reason}; name another one with --port") from None


def _path(names: tuple[str, ...]) -> str:
    if not names:
        return "/"
    if len(names) == 1:
        return f"/jobs/{quote(names[0], safe='')}"
    return f"/compare?jobs={','.join(quote(name, safe='') for name in names)}"
