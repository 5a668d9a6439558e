"""Run `herringbone.events.from_log` next to a job: the process that finds the metrics in the job's log.

A user's regular expression may search for ever, so the controller's loop runs none.
"""

from __future__ import annotations

import json

from herringbone.system.helper_process import HelperProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from herringbone.controller.hosts import Host
    from herringbone.protocols.controller_config import ControllerConfig

# The end of a job waits this long for the metrics of its last lines.
_PATIENCE_SECONDS = 10.0


class MetricsProcess:
    """The process of one job, which starts when it is first needed and lives until `finish`.

    >>> process = MetricsProcess(config)                             # doctest: +SKIP
    >>> process.start(hosts)                                         # doctest: +SKIP
    >>> process.finish()                                             # doctest: +SKIP
    []
    """

    def __init__(self, config: ControllerConfig, *, patience: float = _PATIENCE_SECONDS) -> None:
        self._config = config
        self._patience = patience
        self._process = HelperProcess("herringbone.events.from_log")

    @property
    def is_wanted(self) -> bool:
        """Report whether the job has metric definitions."""
        return bool(self._config["metric_definitions"])

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return self._process.pids

    def start(self, hosts: Sequence[Host]) -> None:
        """Start the process at the beginning of the hosts' present attempt, unless it was started before."""
        if self._process.is_started:
            return
        request = {
            "logs": self._config["logs"],
            "hosts": {host.name: host.log_begins for host in hosts},
            "definitions": self._config["metric_definitions"],
        }
        # A process that could not be started has no notes. The job goes on, and its log has the values.
        self._process.start(json.dumps(request).encode())

    def show(self, states: Iterable[bytes]) -> None:
        """Send states of progress bars, which are in no log; a process that is behind does not see them."""
        for state in states:
            self._process.offer(state)

    def finish(self) -> list[str]:
        """Wait until the process has read the whole log, kill it if that takes too long, and return its notes."""
        text, is_read = self._process.finish(self._patience)
        notes = text.splitlines()
        if not is_read:
            notes.append(f"the log was not searched to its end for metrics within {self._patience:g} s")
        return notes
