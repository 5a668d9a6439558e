"""The stop of one host: ask its ranks, or end them; at last, say whether a checkpoint came within the grace.

    coordinator    ask ------------------> every host: ranks wait in their next call of `should_stop`
    every host     asked, most calls ----> coordinator
    coordinator    stop, call -----------> every host: ranks that make this call get True; 0: SIGTERM now

`events.stop_file` has the rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone_contract.events import stop_file

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Ask, Stop
    from herringbone_entry.host_context import HostContext
    from herringbone_entry.observer.checkpoints import Checkpoints
    from herringbone_entry.supervisor.rank_group import RankGroup


# `checkpoint.manifest.NEWEST`, without its module, which takes long to load: the file is written after a checkpoint.
_NEWEST = "newest"


class HostStop:
    """The stop of one host, if there is one; `path` is the file by which its ranks agree, "" where they cannot.

    `kill` ends what still runs at the end of the grace.
    """

    def __init__(self, context: HostContext, ranks: RankGroup, kill: Callable[[], None]) -> None:
        self._context, self._ranks, self._kill = context, ranks, kill
        ranks.has_obeyed = self._has_obeyed
        self.path = self._why = ""
        self._call = self._most = 0
        # Times in seconds since 1970; 0.0 before it.
        self._asked_at = self._ended_at = 0.0
        # On the first host, once it was asked.
        self._checkpoints: Checkpoints | None = None
        # True where ranks still ran at the end of the grace.
        self._has_killed = False

    def ask(self, order: Ask) -> None:
        """Let ranks wait in their next call, and report how many they have made."""
        self._why, self._asked_at = order["why"], time.time()
        most = self._most = stop_file.exchange(self.path, stop_file.ASKED)
        if self._context.host.is_first:
            from herringbone_entry.observer.checkpoints import Checkpoints

            # While ranks wait. A file server has a clock of its own, so what is new is told by what is there now.
            self._checkpoints = Checkpoints(str(self._context.host.checkpoints))
        # The order to stop may come before this call returns.
        self._context.report({"kind": "asked", "most": most})

    def stop(self, order: Stop) -> None:
        """Let ranks run on to a call of theirs, or send them SIGTERM now; SIGKILL follows after the grace period."""
        # The grace period counts from the order, not from the moment at which each rank gets its signal.
        self._context.loop.later(self._context.host.stop_grace, self._kill)
        call = self._call = order["call"]
        stop_file.exchange(self.path, call)
        host = self._context.host
        if call and host.is_first:
            until = f"ranks stop at call {call} of should_stop, or after {host.stop_grace:g} s"
            self._context.log(f"asked to go ({self._why}): {until}")
        elif self._asked_at and host.is_first and not self._most:
            unless = "without a checkpoint unless the script handles it: none of them asks should_stop"
            self._context.log(f"asked to go ({self._why}): ranks get SIGTERM, which ends them {unless}")
        self._ranks.stop(call)

    def note_kill(self) -> None:
        """Note that ranks which still run are about to be killed."""
        self._has_killed = self._has_killed or bool(self._asked_at and self._ranks.living)

    def end(self) -> None:
        """Note that no rank of the job runs any more."""
        self._ended_at = time.time()

    def _has_obeyed(self) -> bool:
        """Say whether a rank of this host has made the call at which it stops."""
        return bool(self._call) and self._call <= stop_file.exchange(self.path)

    def report(self) -> None:
        """Say in log and events whether a checkpoint came between the notice and the end."""
        host = self._context.host
        if self._checkpoints is None:
            return
        saved = None if self._has_killed else _newest(self._checkpoints, str(host.checkpoints))
        if not (self._call or saved):
            # Of a script that never asks, and handles no SIGTERM.
            return
        seconds = round(self._ended_at - self._asked_at, 1)
        within = f"within {seconds:g} s of the notice ({self._why}); the grace is {host.stop_grace:g} s"
        if saved:
            self._context.log(f"saved {saved} {within}")
        else:
            end = "killed" if self._has_killed else "ended as they were told" if self._has_obeyed() else "ended"
            self._context.log(f"the ranks {end} without a new checkpoint {within}")
        event = {"kind": "stop", "why": self._why, "call": self._call or None, "seconds": seconds, "saved": saved}
        self._context.send_event({**event, "t": time.time(), "grace": host.stop_grace})


def _newest(checkpoints: Checkpoints, folder: str) -> str | None:
    """Return the newest checkpoint that is new, without those whose save was cut."""
    from herringbone_contract.masking import printable

    entries = [entry for entry in checkpoints.last(time.time()) if isinstance(entry, dict)]
    whole = [
        entry
        for entry in entries
        if entry["path"] != _NEWEST and not any(Path(folder, entry["path"]).glob("*.unfinished"))
    ]
    return printable(max(whole, key=lambda entry: entry["t"])["path"]) if whole else None
