"""The notice that the platform takes this host away: a file, an answer of a URL, or a command that exits with 0.

The observer has the user, the network and the limits of the ranks, so it reaches nothing that the script could not.
Redirections are not followed, and of an answer only the status is read: a body may hold credentials.
"""

from __future__ import annotations

import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from herringbone_contract.events.drain import described
from herringbone_contract.events.format import Event, Point
from herringbone_entry.observer.source import Source

# AWS asks for a look every 5 seconds; its notice comes two minutes before the end.
_LOOK_SECONDS = 5.0
_COMMAND_SECONDS, _URL_SECONDS = 30.0, 2.0
# AWS's instance metadata, which answers only those who have asked for a token by PUT (IMDSv2).
_METADATA = ("169.254.169.254", "fd00:ec2::254")
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - a name, no secret


class DrainNotice(Source):
    """Sends one event when the notice is there; the looks are in a thread, because each may take its time."""

    def __init__(self, notice: str | Sequence[str], pause: float = _LOOK_SECONDS) -> None:
        self._notice, self._why, self._pause = notice, described(notice), pause
        self._is_there = threading.Event()
        self._is_closed = threading.Event()
        self._is_sent = False
        threading.Thread(target=self._watch, daemon=True).start()

    def poll(self, now: float) -> list[Event | Point]:
        if self._is_sent or not self._is_there.is_set():
            return []
        self._is_sent = True
        return [{"kind": "drain", "t": now, "why": self._why}]

    def last(self, now: float) -> list[Event | Point]:  # noqa: ARG002 - it comes too late
        return []

    def close(self) -> None:
        self._is_closed.set()

    def _watch(self) -> None:
        while not is_there(self._notice):
            if self._is_closed.wait(self._pause):
                return
        self._is_there.set()


def is_there(notice: str | Sequence[str]) -> bool:
    """Look once for a notice; whatever cannot be read, reached or started is none."""
    if not isinstance(notice, str):
        return _exits_well(notice)
    return _answers(notice) if notice.startswith("http") else os.path.lexists(notice)


def _exits_well(words: Sequence[str]) -> bool:
    try:
        nothing = subprocess.DEVNULL
        ended = subprocess.run(
            words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0


def _answers(url: str) -> bool:
    status = _status(urllib.request.Request(url))  # noqa: S310 - http and https alone, which `described` checks
    parts = urlsplit(url)
    if status == 401 and parts.hostname in _METADATA:
        asked = f"{parts.scheme}://{parts.netloc}/latest/api/token"
        seconds = {f"{_TOKEN}-ttl-seconds": "60"}
        try:
            with _open(urllib.request.Request(asked, method="PUT", headers=seconds)) as answer:  # noqa: S310
                token = answer.read(256).decode("ascii")
            status = _status(urllib.request.Request(url, headers={_TOKEN: token}))  # noqa: S310
        except (OSError, ValueError, HTTPException):
            return False
    return status == 200


def _status(request: urllib.request.Request) -> int:
    try:
        with _open(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError, HTTPException):
        return 0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _open(request: urllib.request.Request) -> Any:
    # Without the environment's proxies, which know nothing of this host.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect).open(request, timeout=_URL_SECONDS)
