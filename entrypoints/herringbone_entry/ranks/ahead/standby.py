"""The ranks of a standby: a host that has started ahead, and waits for its start line.

    attempt 1    starts ranks, and keeps their start messages in files below `HERRINGBONE_STARTS`
    standby      starts prewarmed ranks that import what those scripts import first, at low priority
    start line   attempt 2 begins in the standby: only the rendezvous and the start messages are left

The end of the line ends a standby, and with it its ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.constants import HostVariable
from herringbone_entry.inherited import inherited

if TYPE_CHECKING:
    from herringbone_entry.channel.frames import Message
    from herringbone_entry.ranks.prewarm import PrewarmedRank

_LOWEST_PRIORITY = 19
# The priority of this process before it lowered it; empty where it could not raise it again.
_priorities: list[int] = []
# A bit of /proc/self/status, and the limit of a priority of 0: with one of them a process may raise its priority again.
_CAP_SYS_NICE, _NICE_LIMIT = 23, 20


def record(starts: str, number: int, message: Message, python: str) -> None:
    """Keep the start message of this host's rank of that number for its standby; secrets are left out."""
    kept = {name: value for name, value in message.items() if name not in ("secrets", "listen")}
    # A full disk costs the next start its time.
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{starts}{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({**kept, "python": python}, file)


def start(environ: Mapping[str, str]) -> list[PrewarmedRank]:
    """Start the ranks of a standby, in the order of their numbers."""
    from herringbone_entry.ranks.ahead.leading_imports import leading_imports
    from herringbone_entry.ranks.prewarm import PrewarmedRank, is_possible

    if not is_possible(environ):
        return []
    if _may_raise_priority():
        _priorities.append(os.getpriority(os.PRIO_PROCESS, 0))
        os.nice(_LOWEST_PRIORITY)
    ranks: list[PrewarmedRank] = []
    starts = Path(environ[HostVariable.STARTS])
    for path in sorted(starts.parent.glob(f"{starts.name}*"), key=lambda path: (len(path.name), path.name)):
        with contextlib.suppress(OSError, ValueError):
            message = json.loads(path.read_text())
            rank = PrewarmedRank(message.pop("python"), inherited(environ))
            ranks.append(rank)
            if message["entry"] == "script":
                found = leading_imports(message["program"], message["first_paths"])
                rank.preimport({**message, "kind": "preimport", "imports": found.statements})
    return ranks


def wake(ranks: Sequence[PrewarmedRank]) -> None:
    """Give this process and its ranks their priority back; also threads that libraries have started."""
    if not _priorities:
        return
    for pid in [os.getpid(), *(rank.pid for rank in ranks)]:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _priorities[0])


def _may_raise_priority() -> bool:
    import resource

    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        capabilities = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
        if int(capabilities, 16) >> _CAP_SYS_NICE & 1:
            return True
    limit = getattr(resource, "RLIMIT_NICE", None) if sys.platform == "linux" else None
    return limit is not None and resource.getrlimit(limit)[0] >= _NICE_LIMIT
