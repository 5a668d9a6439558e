"""Free the devices of a job that is over, or leave the line, and wake those who wait.

A controller imports this early: the package may be upgraded or removed while its job runs.
"""

from __future__ import annotations

import contextlib

from herringbone.slots.folder import SlotsFolder
from herringbone.slots.line import first_ones, in_order
from herringbone_contract.errors import HerringboneError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.protocols.controller_config import ClaimConfig

# So many waiters learn at once that something has changed; each that is granted something wakes the next ones.
POKED = 4


def leave(folder: SlotsFolder, name: str) -> None:
    """Remove a ticket of this user, and wake those who wait."""
    folder.remove(name)
    poke_next(folder)


def poke_next(folder: SlotsFolder) -> None:
    """Wake the first jobs of the line, of each group that waits for the same devices."""
    view = folder.read()
    folder.poke([ticket.name for ticket in first_ones(in_order(view.tickets, view.turns), POKED)])


def free(claim: ClaimConfig | None) -> None:
    """Free what a controller's job had; no error, because the end of the controller frees it, too."""
    with contextlib.suppress(OSError, HerringboneError):
        if claim is not None:
            with contextlib.closing(SlotsFolder(claim["folder"])) as folder:
                leave(folder, claim["ticket"])


def touch(claim: ClaimConfig | None) -> None:
    """Keep the ticket of a job that runs for weeks from being cleaned up with old files."""
    with contextlib.suppress(OSError, HerringboneError):
        if claim is not None:
            with contextlib.closing(SlotsFolder(claim["folder"])) as folder:
                folder.touch(claim["ticket"])
