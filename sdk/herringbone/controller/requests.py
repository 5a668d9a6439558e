"""Forward the requests of clients from the job's folder to the supervisors.

A client renames a file into the folder and signals the controller; the controller takes the file away, which tells the
client that the request is on its way. Imported with the first request.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from herringbone.controller.log_files import complain
from herringbone_contract.events.format import encode as encode_event
from herringbone_contract.events.requests import MAX_REQUEST_BYTES, Request, encode, is_for, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from herringbone.controller.hosts import Host

SUFFIX = ".json"
# A client sends one at a time; more of them would only fill the supervisors' pipes.
_MAX_REQUESTS = 64
# Answers for hosts that cannot give one.
_OVER = "this host is over"
_DEAF = "its supervisor takes no requests: it is stopped, or its program is not Herringbone's"
_ABSENT = "the job has fewer hosts now, without this one"


def forward(folder: str, hosts: Sequence[Host], absent: Sequence[str] = (), own: str = "") -> list[Request]:
    """Send each request in the folder to the hosts that it names; answer for those that cannot take it.

    `absent` are hosts of the job that are not in this attempt. Requests of the kind `own` go to no host: returns them.
    """
    requests = take(folder)
    logs = f"{os.path.dirname(folder)}/logs"  # noqa: PTH120
    for request in requests:
        if request["kind"] == own:
            continue
        line = encode(request)
        for host in hosts:
            if is_for(request, host.name) and not host.tell(line):
                answer(logs, host.name, request, error=_OVER if host.exit_code is not None else _DEAF)
        for name in absent:
            if is_for(request, name):
                answer(logs, name, request, error=_ABSENT)
    return [request for request in requests if request["kind"] == own]


def take(folder: str) -> list[Request]:
    """Return the requests in the folder, oldest first, and remove their files; what is no request of ours is removed.

    >>> take("/jobs/digits-1/requests")                              # doctest: +SKIP
    [{'id': '00ff00ff00ff00ff', 'kind': 'stacks'}]
    """
    requests = []
    try:
        names = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]  # noqa: PTH208
    except OSError as error:
        complain(f"requests: {error}")
        return []
    for name in names[:_MAX_REQUESTS]:
        path = os.path.join(folder, name)  # noqa: PTH118
        try:
            requests.append((os.lstat(path).st_mtime_ns, _read(path)))
        except OSError as error:
            complain(f"requests: {error}")
        # Removed in any case: a file that cannot be read now would be looked at with each signal.
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
    requests.sort(key=lambda pair: pair[0])
    return [request for _, request in requests if request is not None]


def _read(path: str) -> Request | None:
    # O_NOFOLLOW and O_NONBLOCK: a link would lead to another file, and a FIFO would stop the controller.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        # Only the job's owner asks: the folder is private, and this holds also where its mode was changed.
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            complain(f"requests: {path} is no file of this user; it was not read")
            return None
        return parse(os.read(descriptor, MAX_REQUEST_BYTES + 1))
    finally:
        os.close(descriptor)


def answer(logs: str, host: str, request: Request, *, text: str = "", error: str = "") -> None:
    """Answer a request in the events of a host, which cannot or need not: the client would wait for nothing."""
    event = {"kind": "answer", "t": time.time(), "host": host, "id": request["id"], "text": text, "error": error}
    try:
        # O_APPEND: the log's writer has the same file open, and each of the two writes whole lines.
        file = os.open(f"{logs}/{host}.events", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, encode_event(event))
        finally:
            os.close(file)
    except OSError as problem:
        complain(f"requests: {problem}")
