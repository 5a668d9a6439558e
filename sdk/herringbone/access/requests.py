"""Ask the supervisors of a running job something, and wait for their answers.

    ask() -> jobs/<name>/requests/<id>.json + a signal -> controller -> supervisors
      ^                                                                      |
      +------------ logs/<host>.events <------ controller <------- events ---+

Backends whose controllers run elsewhere carry the request there; see `Backend.ask`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.events.source import decode_lines
from herringbone_contract.errors import RequestError
from herringbone_contract.events.requests import Request, encode
from herringbone_contract.files import write_whole

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend
    from herringbone.protocols.host_access import HostAccess
    from herringbone.records.home import JobFolder
    from herringbone_contract.events.format import Event

# Debuggers take seconds to load on a busy machine.
TIMEOUT_SECONDS = 20.0
_POLL_SECONDS = 0.02
_DESCRIBE_SECONDS = 1.0
# A signal may come while the controller does something else, and a shared file system shows new files late.
_NUDGE_SECONDS = 2.0
_ID_BYTES = 8
_READ_BYTES = 1 << 20
_UNKNOWN = (
    "its controller takes no requests: an earlier release of Herringbone started the job, or the job is only "
    "starting; try again in a moment"
)


def ask(
    backend: Backend,
    name: str,
    kind: str,
    *,
    timeout: float = TIMEOUT_SECONDS,
    hosts: Sequence[str] | None = None,
    enough: Callable[[Event], bool] | None = None,
    look_seconds: float = _DESCRIBE_SECONDS,
    **members: Any,
) -> dict[str, Event]:
    """Send a request to a job's hosts and return the answer of each, an event, by host.

    >>> ask(backend, "digits-1", "debug", rank=0)["algo-1"]["value"]     # doctest: +SKIP
    {'port': 43125, ...}

    `hosts`: only these; None is all. Waits until all of them have answered or one answer is `enough`, and at most
    `timeout` seconds: hosts without an answer are missing in the result then. Meanwhile it looks every `look_seconds`
    whether the job still runs. Raises `RequestError` when the job is
    over or no host has answered, `UnsupportedError` where nothing can be asked.
    """
    record = backend.describe(name)
    if record.done:
        raise RequestError(f"job {name} is {record.status}: only a running job can be asked")
    request: Request = {"id": os.urandom(_ID_BYTES).hex(), "kind": kind, **members}
    all_hosts = [str(host["name"]) for host in record.plan_dict.get("hosts", ())]
    if hosts is not None:
        if unknown := [host for host in hosts if host not in all_hosts]:
            raise RequestError(f"job {name} has no host {unknown[0]}; its hosts are {', '.join(all_hosts)}")
        request["hosts"] = list(hosts)
    awaited = set(all_hosts if hosts is None else hosts)
    answers: dict[str, Event] = {}
    source = backend.ask(name, request)
    try:
        deadline, next_look = time.monotonic() + timeout, time.monotonic() + look_seconds
        while True:
            for event in source.read():
                if event.get("id") == request["id"]:
                    answers[str(event.get("host"))] = event
                    if enough is not None and enough(event):
                        return answers
            if awaited <= answers.keys():
                return answers
            now = time.monotonic()
            if now >= deadline:
                break
            if now >= next_look:
                next_look = now + look_seconds
                if (status := backend.describe(name).status) != record.status and backend.describe(name).done:
                    raise RequestError(f"job {name} ended before it answered: it is {status}")
            time.sleep(_POLL_SECONDS)
    finally:
        source.close()
    if not answers:
        raise RequestError(no_answer(name, sorted(awaited), timeout))
    return answers


def no_answer(name: str, hosts: Sequence[str], timeout: float) -> str:
    """Return the message for hosts that have not answered.

    >>> no_answer("digits-1", ["algo-1"], 20.0).partition(" s: ")[0]
    'job digits-1: no answer from algo-1 within 20'
    """
    return (
        f"job {name}: no answer from {', '.join(hosts)} within {timeout:g} s: the host may be busy or stopped, or its "
        "image may have an earlier release of Herringbone; `herringbone logs` shows whether it lives"
    )


def send(folder: JobFolder, request: Request) -> Path:
    """Write a request where the job's controller finds it, and return the file.

    Raises `RequestError` while the controller takes none: it must not get the signal then, of which it would die.
    """
    path = folder.requests / f"{request['id']}.json"
    try:
        # Whole at once: the controller may look into the folder at any moment.
        write_whole(path, encode(request))
    except FileNotFoundError:
        raise RequestError(f"job {folder.path.name}: {_UNKNOWN}") from None
    except OSError as error:
        raise RequestError(f"job {folder.path.name}: the request cannot be written: {error}") from error
    return path


class FolderAnswers:
    """Sends a request through the job's folder, and reads the events that its hosts' files get from then on.

    `nudge` signals the controller; it is called again while the controller has not taken the request.
    """

    def __init__(self, folder: JobFolder, hosts: Iterable[str], request: Request, nudge: Callable[[], None]) -> None:
        # Before the request: an answer may come at once.
        self._files = [NewEvents(folder.events(host)) for host in hosts]
        self._nudge = nudge
        self._request = send(folder, request)
        try:
            nudge()
        except BaseException:
            self._request.unlink(missing_ok=True)
            raise
        self._next_nudge = time.monotonic() + _NUDGE_SECONDS

    def read(self) -> list[Event]:
        events = [event for file in self._files for event in file.read()]
        if not events and time.monotonic() >= self._next_nudge:
            self._next_nudge = time.monotonic() + _NUDGE_SECONDS
            if self._request.exists():
                self._nudge()
        return events

    def close(self) -> None:
        # Nobody waits for the answer to a request that was never taken.
        self._request.unlink(missing_ok=True)


class NewEvents:
    """The events that a file gets from now on; the file may not exist yet, or not any more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0
        self._lines = Lines()

    def read(self) -> list[Event]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read(_READ_BYTES)
        except OSError:
            return []
        self._offset += len(chunk)
        return self._lines.feed(chunk)


class Lines:
    """Splits bytes, which come in pieces of any size, into events.

    >>> lines = Lines()
    >>> lines.feed(b'{"kind":"answer","t":1.0'), lines.feed(b'}\\n')
    ([], [{'kind': 'answer', 't': 1.0}])
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, chunk: bytes) -> list[Event]:
        complete, _, self._partial = (self._partial + chunk).rpartition(b"\n")
        return decode_lines(complete) if complete else []


def way_into(backend: Backend, name: str, host: str | None = None) -> tuple[str, HostAccess]:
    """Return a host of a running job, the first one for None, and the way into it.

    Raises `RequestError` when the job is over or has no such host, `UnsupportedError` where nobody gets in.
    """
    record = backend.describe(name)
    if record.done:
        raise RequestError(f"job {name} is {record.status}: its hosts are gone; `herringbone download` has its files")
    hosts = [str(each["name"]) for each in record.plan_dict.get("hosts", ())]
    if host is not None and host not in hosts:
        raise RequestError(f"job {name} has no host {host}; its hosts are {', '.join(hosts)}")
    host = hosts[0] if host is None else host
    return host, backend.access(name, host)
