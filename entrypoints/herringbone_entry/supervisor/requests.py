"""Requests of clients to this host: lines that the controller forwards over the private line while the job runs.

    lifeline -> feed() -> the module of the request's kind -> answer() -> an event of the supervisor's output

A request comes from the job's owner, through the job's folder. It names what to do and never holds a program or code.
All of this happens in the event loop's thread, so no handler may block.
"""

from __future__ import annotations

import functools
import importlib
import time
from typing import Any

from herringbone_contract.events.requests import MAX_REQUEST_BYTES, Request, is_for, parse
from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.rank_group import RankGroup

# Kind -> its module, imported when the first request of the kind comes. Its function
# `handle(request, context, ranks, answer)` carries a request out.
_HANDLERS = {
    "debug": "herringbone_entry.supervisor.debugger",
    "stacks": "herringbone_entry.supervisor.stacks",
}
# An event has at most 64 KiB.
_MAX_TEXT_CHARS = 8_000


class Requests:
    """Takes requests apart from a stream of bytes, and has each one carried out."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._partial = b""

    def feed(self, chunk: bytes, ranks: RankGroup | None) -> None:
        """Take the next bytes of the line; `ranks` is None while the host prepares, and when it could not."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        # The controller sends no longer lines, so this one has no end that we would see.
        self._partial = self._partial[: MAX_REQUEST_BYTES + 1]
        for line in lines:
            request = parse(line)
            if request is not None and is_for(request, self._context.host.name):
                self._handle(request, ranks)

    def _handle(self, request: Request, ranks: RankGroup | None) -> None:
        answer = functools.partial(self._answer, request["id"])
        kind = request["kind"]
        if kind not in _HANDLERS:
            answer(error=f"the release of Herringbone on this host knows no request {kind!r}; update it there")
        elif ranks is None:
            answer(error="this host has no ranks: it still prepares, or its preparation failed; look at its log")
        else:
            try:
                importlib.import_module(_HANDLERS[kind]).handle(request, self._context, ranks, answer)
            except Exception as error:  # noqa: BLE001 - a look at a job must not end it
                answer(error=f"{type(error).__name__}: {error}")

    def _answer(self, identifier: str, text: str = "", *, error: str | None = None, **members: Any) -> None:
        text = text[:_MAX_TEXT_CHARS]
        error = None if error is None else error[:_MAX_TEXT_CHARS]
        event = {"kind": "answer", "t": time.time(), "id": identifier, "text": text, "error": error, **members}
        self._context.send_event(event)
