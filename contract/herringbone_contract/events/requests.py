"""Requests: what a client asks the supervisors of a running job, as one line of JSON each. Pure.

    client -> jobs/<name>/requests/<id>.json -> controller -> the private line of each host -> supervisor

A request has an `id`, which its answers repeat, and a `kind`; the other members belong to the kind. `hosts` names the
hosts that it is for, and all hosts get it if there is no such member. Answers are events, see `events.format`.
"""

from __future__ import annotations

import json
import re
from typing import Any

Request = dict[str, Any]
# A write of PIPE_BUF bytes into a pipe is taken as a whole or not at all, so no half of a request can get stuck.
MAX_REQUEST_BYTES = 4096
# The kind of a request that the job's controller itself takes: for as many hosts as its member `count` says.
SCALE = "scale"
_ID = re.compile(r"[0-9a-f]{16}")
_KIND = re.compile(r"[a-z_]{1,32}")


def encode(request: Request) -> bytes:
    """Return a request as one line.

    >>> encode({"id": "00ff00ff00ff00ff", "kind": "debug", "rank": 1})
    b'{"id":"00ff00ff00ff00ff","kind":"debug","rank":1}\\n'

    Raises `ValueError` for one that is no request, or is longer than MAX_REQUEST_BYTES.
    """
    line = json.dumps(request, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if parse(line) is None:
        raise ValueError(f"this is no request: {line[:200]!r}")
    return line


def parse(line: bytes) -> Request | None:
    """Return the request of a line, None for a line that is no request."""
    if len(line) > MAX_REQUEST_BYTES:
        return None
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    identifier, kind, hosts = request.get("id"), request.get("kind"), request.get("hosts")
    if not (isinstance(identifier, str) and _ID.fullmatch(identifier)):
        return None
    if not (isinstance(kind, str) and _KIND.fullmatch(kind)):
        return None
    if hosts is not None and not (isinstance(hosts, list) and all(isinstance(host, str) for host in hosts)):
        return None
    return request


def is_for(request: Request, host: str) -> bool:
    """Say whether a host gets the request.

    >>> is_for({"hosts": ["algo-2"]}, "algo-1"), is_for({}, "algo-1")
    (False, True)
    """
    hosts = request.get("hosts")
    return hosts is None or host in hosts
