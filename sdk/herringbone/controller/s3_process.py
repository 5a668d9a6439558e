"""Run `herringbone.s3.sync` next to a job: the process that sends its checkpoints, and then its results, to S3."""

from __future__ import annotations

import json

from herringbone.system.helper_process import HelperProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from herringbone.protocols.controller_config import ControllerConfig


class S3Process:
    """The process of one job that writes to S3; nothing happens for all others."""

    def __init__(self, config: ControllerConfig) -> None:
        self._order = config["s3"]
        self._process = HelperProcess("herringbone.s3.sync")

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return self._process.pids

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
