"""Run `herringbone.s3.pipes.feed` next to a job: the process that fills the FIFOs of channels in Pipe mode."""

from __future__ import annotations

import json
import os

from herringbone.system.helper_process import HelperProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.protocols.controller_config import ControllerConfig

# It ends at once when its input ends, so a longer wait means that it is paused.
_PATIENCE_SECONDS = 5.0
_NO_DESCRIPTOR = -1


class PipeProcess:
    """The process of one attempt of a job; nothing happens for jobs without Pipe mode.

    >>> process = PipeProcess(config)                                   # doctest: +SKIP
    >>> process.start()                                                 # doctest: +SKIP
    """

    def __init__(self, config: ControllerConfig) -> None:
        self._order = config["pipes"]
        self._process = HelperProcess("herringbone.s3.pipes.feed")

    @property
    def pids(self) -> frozenset[int]:
        """The process, if it was started: no orphan of a host."""
        return self._process.pids

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
        self._process.finish(_PATIENCE_SECONDS)
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
