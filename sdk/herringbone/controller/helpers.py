"""The processes that run next to a job, one class each: metrics of its log, what it sends to S3, its FIFOs."""

from __future__ import annotations

import json
import os

from herringbone.system.helper_process import HelperProcess
from herringbone.system.processes import is_stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from herringbone.controller.hosts import Host
    from herringbone.protocols.controller_config import ControllerConfig

# The end of a job waits this long for the metrics of its last lines.
_PATIENCE_SECONDS = 10.0
# The process that fills FIFOs ends at once when its input ends, so a longer wait means that it is paused.
_FEED_SECONDS = 5.0
_NO_DESCRIPTOR = -1


class Helper:
    """The process `python -m module`, whose `task` is the rest of the phrase "the process that"."""

    def __init__(self, module: str, task: str) -> None:
        self._process = HelperProcess(module)
        self._task = task

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return self._process.pids

    @property
    def standstill(self) -> str:
        """Remedy for a process that somebody has stopped, "" while it goes on."""
        stopped = (pid for pid in self.pids if pid > 0 and is_stopped(str(pid)))
        return "".join(
            f"the process that {self._task} (process {pid}) is stopped; `kill -CONT {pid}` lets it go on"
            for pid in stopped
        )


class MetricsProcess(Helper):
    """Finds the metrics in the job's log; it starts when it is first needed and lives until `finish`.

    A user's regular expression may search for ever, so the controller's loop runs none.

    >>> process = MetricsProcess(config)                             # doctest: +SKIP
    >>> process.start(hosts)                                         # doctest: +SKIP
    >>> process.finish()                                             # doctest: +SKIP
    []
    """

    def __init__(self, config: ControllerConfig, *, patience: float = _PATIENCE_SECONDS) -> None:
        super().__init__("herringbone.events.from_log", "finds metrics in the log")
        self._config = config
        self._patience = patience

    @property
    def is_wanted(self) -> bool:
        """Report whether the job has metric definitions."""
        return bool(self._config["metric_definitions"])

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


class S3Process(Helper):
    """Sends a job's checkpoints, and then its results, to S3; nothing happens for jobs that write nothing there."""

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__("herringbone.s3.sync", "sends the job's files to S3")
        self._order = config["s3"]

    def start(self) -> None:
        """Start the process, unless it was started before."""
        if self._order is not None and not self._process.is_started:
            self._process.start(json.dumps(self._order).encode())

    def finish(self, results: str, is_ended: Callable[[], bool]) -> str | None:
        """Send the last checkpoints and the packed results in the folder `results`.

        Returns the reason why something could not be sent, None for success. `is_ended` reports whether the user no
        longer waits.
        """
        if self._order is None:
            return None
        self.start()
        self._process.send(json.dumps({"results": results}).encode())
        answer, is_whole = self._process.finish(None, is_ended)
        if not is_whole:
            return "the job was stopped again"
        try:
            failed: str | None = json.loads(answer).get("failed")
        except ValueError:
            return "the process that sends them died; the job's controller.log may say why"
        return failed

    def leave(self) -> None:
        """Let the process send what is whole and end by itself: another controller goes on with the job."""
        self._process.leave()


class PipeProcess(Helper):
    """Fills the FIFOs of channels in Pipe mode during one attempt; nothing happens for jobs without any.

    >>> process = PipeProcess(config)                                   # doctest: +SKIP
    >>> process.start()                                                 # doctest: +SKIP
    """

    def __init__(self, config: ControllerConfig) -> None:
        super().__init__("herringbone.s3.pipes.feed", "fills the channels of Pipe mode")
        self._order = config["pipes"]

    @property
    def answer(self) -> int:
        """The descriptor that becomes readable when the process fails; -1 while it does not run."""
        return self._process.answer if self._process.is_started else _NO_DESCRIPTOR

    def start(self) -> None:
        """Start the process; the FIFOs of the first epoch exist."""
        if self._order is not None:
            self._process.start(json.dumps(self._order).encode())

    def failure(self) -> str:
        """Return why the process has failed, after `answer` became readable."""
        try:
            return str(json.loads(os.read(self.answer, 1 << 16).splitlines()[0])["failed"])
        except (OSError, ValueError, LookupError):
            return "the process that fills the FIFOs of Pipe mode died; the job's controller.log may say why"

    def finish(self) -> None:
        """End the process of an attempt whose hosts are over, and make the FIFOs of the next one."""
        if self._order is None:
            return
        self._process.finish(_FEED_SECONDS)
        self._renew(keep=True)

    def remove(self) -> None:
        """Remove the FIFOs of a job that is over."""
        if self._order is not None:
            self._renew(keep=False)

    def _renew(self, *, keep: bool) -> None:
        import contextlib

        import msgspec

        from herringbone.s3.pipes.order import FeedOrder, renew_fifos

        assert self._order is not None
        for pipe in msgspec.convert(self._order, FeedOrder).pipes:
            # A script may have replaced the folder. Its FIFOs are then out of reach, and only this job has them.
            with contextlib.suppress(OSError):
                renew_fifos(pipe, keep=keep)
