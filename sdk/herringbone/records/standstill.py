"""The reason why a running job does not go on: a process that somebody has stopped, or a disk that takes nothing.

    process or disk                         found by                             shown in
    rank, mpirun, server, observer          its supervisor, at each heartbeat    the log, a file of the job's folder
    supervisor, helper of the controller    the controller                       the same
    controller, waiter, client; the home    whoever looks                        `standstill` alone

A stopped process is in state T of /proc/PID/stat, in which a process that computes never is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

from herringbone.system.processes import is_stopped, pid_of, sees
from herringbone_contract.files import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.records.home import Home
    from herringbone.records.index import JobRecord

_FILE = "standstill"
_MAX_CHARS = 2_000
# Callers that wait look 200 times a second, and a disk is asked by a write.
_DISK_SECONDS = 2.0
_PROBE_BYTES = 4096
_REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
# The end of the last probe of a home, and its result.
_probes: dict[str, tuple[float, str]] = {}


def note(logs: str, text: str) -> None:
    """Show the users of a job what stands still, "" for nothing; `logs` is the job's folder of logs."""
    path = f"{os.path.dirname(logs)}/{_FILE}"  # noqa: PTH120 - controllers start without pathlib
    with contextlib.suppress(OSError):
        if text:
            write_whole(path, text[:_MAX_CHARS].encode(errors="replace"))
        else:
            os.unlink(path)  # noqa: PTH108


def standstill(record: JobRecord, home: Home, *, log_is_shown: bool = False) -> str | None:
    """Return what keeps a job from going on, and what to do; None for all other jobs.

    >>> standstill(job.record, find_home())                                       # doctest: +SKIP
    'job digits-1 stands still: algo-1: rank 0 (process 4711) is stopped; `kill -CONT 4711` lets it go on'

    With `log_is_shown`, without what the log says as well.
    """
    if record.done:
        return None
    who = _stopped(record)
    if who is not None:
        role, pid = who
        return (
            f"job {record.name} stands still: somebody has stopped {role}, process {pid}, so its log and its state are "
            f"old; `kill -CONT {pid}` lets it go on, `herringbone stop {record.name}` ends the job"
        )
    if refusal := _refusal_of(str(home.path)):
        return (
            f"job {record.name} cannot be recorded: {home.path} takes no writes ({refusal}), so its log and its state "
            "may be old, and its end waits until that is over"
        )
    # Slurm's controllers run elsewhere: `backends.slurm.states` knows them by their signs of life.
    if silence := json.loads(record.description or "{}").get("Standstill"):
        return f"job {record.name} stands still: {silence}"
    if not log_is_shown and (text := _noted(home, record.name)):
        return f"job {record.name} stands still: {text}"
    return None


def _stopped(record: JobRecord) -> tuple[str, int] | None:
    """Return role and pid of the process that has the job now, if it is stopped."""
    process = record.controller or record.client
    if process is None or (record.place is not None and not sees(record.place)) or not is_stopped(process):
        return None
    if record.controller is not None:
        return "its controller", pid_of(process)
    # As in `records.index.PENDING`, whose module loads sqlite.
    holds = record.secondary_status == "Pending"
    return "the process that holds its place in line" if holds else "the process that submits it", pid_of(process)


def _noted(home: Home, job: str) -> str:
    try:
        return (home.job(job).path / _FILE).read_text(errors="replace")
    except OSError:
        return ""


def _refusal_of(folder: str) -> str:
    """Return why nothing can be written to a folder now, "" where that is possible or cannot be known."""
    until, text = _probes.get(folder, (0.0, ""))
    if time.monotonic() >= until:
        text = _probe(folder)
        _probes[folder] = (time.monotonic() + _DISK_SECONDS, text)
    return text


def _probe(folder: str) -> str:
    """Write a little to a file without a name, which leaves nothing behind; free bytes do not tell of a quota."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
        try:
            written = os.write(descriptor, bytes(_PROBE_BYTES))
        finally:
            os.close(descriptor)
    # A system, or a file system, without such files.
    except AttributeError:
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0) if error.errno in _REFUSALS else ""
    return "" if written == _PROBE_BYTES else os.strerror(errno.ENOSPC)
