"""The permit of a host that may be cut off from its job: how long its ranks may run (`backends.ssh.attempts.lease`).

    the machine's keeper     writes until when, from what the job's other machines say
    the host's controller    looks at that time, and ends the ranks when no later one has been written

So ranks end in time whatever becomes of the keeper and of the network.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from herringbone.protocols.controller_config import PermitConfig

# Linux's clock that also counts while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NEVER = float("inf")


def lasting_clock() -> float:
    """Return the seconds of a clock that no user sets, and that no suspended machine stops."""
    return time.clock_gettime(_CLOCK)


def write_permit(path: str, until: float) -> None:
    """Write until when ranks may run, by `lasting_clock`. Raises `OSError`."""
    # In place and of one length: a full disk has room for it, and a reader sees one or the other.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, b"%020.6f" % until, 0)
    finally:
        os.close(descriptor)


class Permit:
    """The permit of one host; without a config the host needs none.

    >>> Permit(None).due, Permit(None).ends()
    (inf, False)

    `due` is the time to ask `ends`, by `time.monotonic`; `clock` is that of the file.
    """

    def __init__(self, config: PermitConfig | None, *, clock: Callable[[], float] = lasting_clock) -> None:
        self._config, self._clock = config, clock
        self._until = _NEVER
        self._has_ended = False
        if config is not None:
            # The keeper of a first attempt starts after the host.
            self._until = self._read() or clock() + config["seconds"]

    @property
    def due(self) -> float:
        return _NEVER if self._until == _NEVER else time.monotonic() + self._until - self._clock()

    def ends(self) -> bool:
        """Report, once, that the ranks must end now."""
        if self._until > self._clock():
            return False
        self._until = self._read()
        if self._until > self._clock():
            return False
        self._until, self._has_ended = _NEVER, True
        return True

    def leave_if_ended(self) -> None:
        """End this process, whose ranks had to end, as one that was killed: the rules for a lost host apply then."""
        if self._has_ended:
            print("the machine was cut off from the others of its job for too long", file=sys.stderr, flush=True)
            os._exit(1)

    def _read(self) -> float:
        assert self._config is not None
        try:
            with open(self._config["path"], "rb") as file:  # noqa: PTH123 - controllers start without pathlib
                return float(file.read(64) or 0)
        except (OSError, ValueError):
            return 0.0
