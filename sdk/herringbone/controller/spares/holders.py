"""The holders of a job whose hosts are processes of this machine: one a host, over all attempts of the job.

controller                                       holder
   config, then the lifeline  ----- pipe ----->  standard input: its end means that the job is over
   log of the host            <---- file ------  standard output

All hosts share this machine, whose memory they share, too: a lost machine takes all copies with it. What they show is
a lost host: its supervisor, its ranks and its holder are killed, and its copies are on another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil

from herringbone.system.descriptors import RESTORED_SIGNALS
from herringbone.system.processes import free_memory
from herringbone_contract.constants import HostVariable
from herringbone_contract.memory.rules import neighbours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# A holder to which nobody has spoken ends. A controller that is killed closes the lifeline; this is for a stopped one.
_IDLE_SECONDS = 24 * 3600.0
# A holder that ends at once is not started for ever.
_STARTS = 50
_KEY_BYTES = 32


class Holders:
    """The holders of one job: `Holders("/run/x", ["algo-1"], ["python"], logs)`; nothing starts before `start`."""

    def __init__(self, folder: str, hosts: Sequence[str], python: str, logs: str) -> None:
        self._folder, self._hosts, self._python, self._logs = folder, list(hosts), python, logs
        self._key = os.urandom(_KEY_BYTES).hex()
        self._limit = (free_memory() or 0) // 2 // max(len(self._hosts), 1)
        self._running: dict[int, str] = {}
        self._lifelines: dict[str, int] = {}
        self._starts = 0

    @property
    def pids(self) -> frozenset[int]:
        """The holders that run: no orphans of a host."""
        return frozenset(self._running)

    def environment(self, host: str) -> dict[str, str]:
        """Return the variables by which a host's ranks find its holder."""
        return {HostVariable.HOLDER: self._path(host)}

    def start(self) -> None:
        """Start the holders that do not run. Without memory for one, the job goes on without."""
        missing = [host for host in self._hosts if host not in self._running.values()]
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103 - no pathlib here
            for host in missing:
                if self._starts < _STARTS:
                    self._starts += 1
                    self._start(host)

    def take_ending(self, pid: int) -> bool:
        """Note that a child has ended; return whether it was a holder."""
        return self._running.pop(pid, None) is not None

    def end(self) -> None:
        """End the holders: the job is over."""
        for line in self._lifelines.values():
            os.close(line)
        self._lifelines.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, host: str) -> None:
        config = {
            "host": host,
            "path": self._path(host),
            "peers": {name: f"unix:{self._folder}/{name}.peer" for name in self._hosts},
            # No labels: the hosts of one machine count as failure domains of their own.
            "neighbour": neighbours(self._hosts, {}).get(host),
            "key": self._key,
            "limit": self._limit,
            "idle": _IDLE_SECONDS,
        }
        read_end, write_end = os.pipe()
        log = os.open(f"{self._logs}/{host}.holder", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(write_end, json.dumps(config).encode() + b"\n")
            pid = os.posix_spawnp(
                self._python,
                [self._python, "-m", "herringbone_entry.holder"],
                {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME", "LANG")},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read_end, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=RESTORED_SIGNALS,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
            os.close(log)
        if (old := self._lifelines.pop(host, None)) is not None:
            os.close(old)
        self._running[pid], self._lifelines[host] = host, write_end

    def _path(self, host: str) -> str:
        return f"{self._folder}/{host}.rank"
