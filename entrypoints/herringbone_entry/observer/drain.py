"""The notice that the platform takes this host away: a file, an answer of a URL, or a command that exits with 0.

The observer has the user, the network and the limits of the ranks, so it reaches nothing that the script could not.
Redirections are not followed, and of an answer only the status is read: a body may hold credentials.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from types import MappingProxyType
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
        threading.Thread(target=self._watch, daemon=True).start()

    def poll(self, now: float) -> list[Event | Point]:
        if not self._is_there.is_set():
            return []
        self._is_there.clear()
        return [{"kind": "drain", "t": now, "why": self._why}]

    def _watch(self) -> None:
        while not is_there(self._notice):
            time.sleep(self._pause)
        self._is_there.set()


def is_there(notice: str | Sequence[str]) -> bool:
    """Look once for a notice; whatever cannot be read, reached or started is none."""
    if not isinstance(notice, str):
        return _exits_well(notice)
    return _answers(notice) if notice.startswith("http") else os.path.lexists(notice)


def _exits_well(words: Sequence[str]) -> bool:
    nothing = subprocess.DEVNULL
    try:
        return subprocess.call(words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_COMMAND_SECONDS) == 0
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def _answers(url: str) -> bool:
    status, _ = _ask(url)
    parts = urlsplit(url)
    if status == 401 and parts.hostname in _METADATA:
        source = f"{parts.scheme}://{parts.netloc}/latest/api/token"
        _, token = _ask(source, "PUT", {f"{_TOKEN}-ttl-seconds": "60"})
        status, _ = _ask(url, headers={_TOKEN: token})
    return status == 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _ask(url: str, method: str = "GET", headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str]:
    """Return the status of an answer, 0 without any, and of a PUT its text."""
    # http and https alone, which `described` checks; no proxies of the environment, which know nothing of this host.
    request = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=_URL_SECONDS) as answer:
            return answer.status, answer.read(256).decode("ascii") if method == "PUT" else ""
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError, HTTPException):
        return 0, ""
