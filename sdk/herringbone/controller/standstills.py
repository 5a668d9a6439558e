"""The controller's part in naming what stands still; see `records.standstill`."""

from __future__ import annotations

import time

from herringbone.records.standstill import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from herringbone.controller.helpers import Helper
    from herringbone.controller.hosts import Host

# The shortest time between two looks, and the time until the next one where nothing is heard of the supervisors.
_PAUSE_SECONDS, _NEXT_SECONDS = 0.1, 5.0


class Standstills:
    """Looks at a job's hosts and helpers, and shows clients which of their processes stand still.

    `logs` is the job's folder of logs; what an earlier controller noted there is removed.
    """

    def __init__(self, logs: str) -> None:
        self._logs = logs
        self._shown: list[str] = []
        self._looked_at = time.monotonic()
        note(logs, "")

    @property
    def due(self) -> float:
        """The time of the next look, if no host is heard before."""
        return self._looked_at + _NEXT_SECONDS

    def look(self, hosts: Sequence[Host], helpers: Sequence[Helper], *, at_once: bool = False) -> None:
        """Look at the hosts that live and at the helpers, unless the last look was a moment ago."""
        now = time.monotonic()
        if now < self._looked_at + _PAUSE_SECONDS and not at_once:
            return
        self._looked_at = now
        # Other texts of hosts are in their logs already.
        loud = [*(host.paused for host in hosts), *(helper.standstill for helper in helpers)]
        texts = [text for text in dict.fromkeys([*(host.standstill for host in hosts), *loud]) if text]
        if texts == self._shown:
            return
        for text in loud:
            if text and text not in self._shown and hosts:
                hosts[0].log.say(f"[{hosts[0].name}] {text}", time.time())
        self._shown = texts
        note(self._logs, "; ".join(texts))
