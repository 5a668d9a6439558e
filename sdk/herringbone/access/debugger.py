"""Attach a debugger to a rank of a running job, and describe the connection for an editor."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.access.requests import ask
from herringbone.protocols.host_access import LOOPBACK
from herringbone_contract.errors import RequestError

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend
    from herringbone_contract.events.format import Event

_PORTS = range(1, 1 << 16)


class Debuggee(NamedTuple):
    """A rank that listens for a debugger: `port` is on its host's loopback, `code` its folder of the job's code."""

    job: str
    rank: int
    host: str
    port: int
    pid: int
    code: str
    python: str
    debugpy: str


def attach_debugger(backend: Backend, name: str, rank: int) -> Debuggee:
    """Have a rank of a running job listen for a debugger.

    >>> attach_debugger(backend, "digits-1", 0).port                 # doctest: +SKIP
    43125

    Raises `RequestError` when no host has the rank, or the rank cannot be debugged; its message says why.
    """
    answers = ask(backend, name, "debug", enough=_is_final, rank=rank)
    for answer in answers.values():
        if _is_final(answer):
            return parse_answer(name, rank, answer)
    errors = {host: str(answer["error"]) for host, answer in answers.items() if answer.get("error")}
    if errors:
        raise RequestError("; ".join(f"job {name}: {host}: {why}" for host, why in sorted(errors.items())))
    raise RequestError(f"job {name}: no host runs a rank {rank}; ranks count from 0, and one that has ended is gone")


def parse_answer(job: str, rank: int, answer: Event) -> Debuggee:
    """Return what a supervisor's answer says. Raises `RequestError` for an answer of another shape."""
    value = answer["value"]
    port, pid = value.get("port"), value.get("pid")
    # A host's output is the job's own: the script may print what it likes.
    if type(port) is not int or port not in _PORTS or type(pid) is not int:
        raise RequestError(f"job {job}: the answer for rank {rank} names no port; is it one of Herringbone's?")
    texts = {name: str(value.get(name, "")) for name in ("code", "python", "debugpy")}
    return Debuggee(job, rank, str(answer.get("host")), port, pid, **texts)


def launch_configuration(debuggee: Debuggee, *, port: int, source: str | None) -> dict[str, Any]:
    """Return the entry for VS Code's `launch.json` that attaches to a rank. Pure.

    `port` is the one on this machine, `source` the folder of the script here, None where only the editor knows it.
    """
    return {
        "name": f"{debuggee.job}, rank {debuggee.rank}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": LOOPBACK, "port": port},
        "pathMappings": [{"localRoot": source or "${workspaceFolder}", "remoteRoot": debuggee.code}],
        # Breakpoints in libraries are allowed, and a step goes into them.
        "justMyCode": False,
    }


def instructions(debuggee: Debuggee, *, port: int, source: str | None) -> str:
    """Return the text for the terminal. Pure."""
    entry = json.dumps(launch_configuration(debuggee, port=port, source=source), indent=4)
    local = source or PurePosixPath("the folder of the script")
    return (
        f"rank {debuggee.rank} of job {debuggee.job} waits for a debugger: debugpy {debuggee.debugpy}, Python "
        f"{debuggee.python}, process {debuggee.pid} of {debuggee.host}\n"
        'VS Code: put this into .vscode/launch.json under "configurations", and start it (F5):\n'
        f"{entry}\n"
        f"Other editors: connect to debugpy at {LOOPBACK}:{port}, and map {local} to {debuggee.code}.\n"
        "While the rank is paused, the other ranks wait for it in their next collective, until its time limit."
    )


def source_folder(plan: dict[str, Any]) -> str | None:
    """Return the folder of the script on this machine, from a row's plan; None for an archive or a git repository.

    >>> source_folder({"source": {"folder": "/home/me/digits"}})
    '/home/me/digits'
    """
    folder = (plan.get("source") or {}).get("folder")
    return folder if isinstance(folder, str) else None


def _is_final(answer: Event) -> bool:
    return isinstance(answer.get("value"), dict)
