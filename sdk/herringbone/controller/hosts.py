"""What the controller asks of a job's hosts, whatever they are made of.

A `Site` starts and ends hosts of one kind: processes of this machine (`processes`) or containers (`containers`).
"""

from __future__ import annotations

import os
import time

from herringbone.controller.log_files import LogFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Literal, Protocol

    from herringbone.controller.config import HostOrder
    from herringbone.controller.retry import Attempt

    # Where a job begins anew: under this controller, or by and by under another one.
    Renewal = Literal["here", "elsewhere"] | None

    class Site(Protocol):
        """The hosts of one job."""

        @property
        def hosts(self) -> Sequence[Host]: ...

        def start(self) -> None:
            """Bring the hosts up. Raises `OSError`."""

        def endings(self) -> Iterable[tuple[Host, int]]:
            """Return the hosts that have ended since the last call, each with its exit code, as the shell counts."""

        def sweep(self) -> None:
            """End what dead hosts left behind."""

        def rouse(self) -> None:
            """Have hosts that stand still run on: that the job has failed is theirs to hear."""

        def collect(self) -> None:
            """All hosts have ended: bring what they wrote to their base folders, and begin to tidy up."""

        @property
        def failed(self) -> Sequence[Attempt]:
            """The attempts of this job that failed before this one."""

        @property
        def places(self) -> Mapping[str, str]:
            """What plays each host; nothing where that is one machine."""

        def told(self, failed: Sequence[Attempt]) -> dict[str, Any]:
            """Return what another controller has to find of failed attempts, as columns of the record."""

        def begin_anew(self, failed: Sequence[Attempt]) -> Renewal:
            """Have `hosts` ready for another start, or another controller start; None where that cannot be."""

        def leave(self) -> None:
            """Return when nothing of the site is left."""

        def abandon(self) -> None:
            """Kill and tidy up at once; some hosts may not even have started."""


_READ_BYTES = 1 << 20


class Host:
    """One supervisor. `exit_code` is the shell's (128 + n for signal n), None while it runs.

    `output` is the descriptor that its output comes from, None once that has ended. `ending` is one that can be read
    when the site knows more of its end; None where SIGCHLD tells that. `cause` says why it ended, where the exit code
    alone does not. `called_off` says that the platform ended it, of its own accord or because somebody else asked.
    """

    def __init__(self, order: HostOrder, log: LogFile) -> None:
        self.name = order["name"]
        self.base = order["base"]
        self.log = log
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.output: int | None = None
        self.ending: int | None = None
        self.cause = ""
        self.called_off = False
        # It went with its machine, or the machine with it.
        self.lost = False
        # Where in its log this attempt begins.
        self.log_begins = 0

    @property
    def over(self) -> bool:
        """Whether the supervisor has ended and all that it wrote is filed."""
        return self.exit_code is not None and self.output is None

    def signal(self, number: int) -> None:
        """Signal the supervisor; one that is gone is no error."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove what an earlier attempt left, but for its checkpoints."""
        import shutil
        from pathlib import Path

        from herringbone_contract.paths import Paths

        paths = Paths(Path(self.base))
        for file in (paths.failure, paths.failure_record, paths.success):
            Path(file).unlink(missing_ok=True)
        for folder in (paths.model, paths.output_data):
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True)

    def drain(self) -> None:
        """File what has come, once: a host that writes without end must not keep us from all else.

        At the output's end, close it.
        """
        if self.output is None:
            return
        try:
            chunk = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""  # a connection that broke
        if chunk:
            self.log.feed(self._text(chunk), time.time())
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Stop reading, whoever still holds the other end."""
        if self.output is not None:
            os.close(self.output)
            self.output = None

    def _text(self, chunk: bytes) -> bytes:
        """Return what the host wrote, from what came."""
        return chunk
