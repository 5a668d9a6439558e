"""The claim of one job on the devices of this machine: enter the line, be granted, hand it on, free it.

line = open_line(os.environ, NvidiaSmi())
claim = line.enter("digits-1", home="/home/ann/.herringbone", wants=Wants(gpus=2))
with left_on_error(claim):
    decision = claim.advance()                      # Granted, or Waiting
    ...                                             # hand `claim.descriptor` to the process that goes on
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from herringbone.slots.devices import Devices, foreign_use, gpus_of, parse_listing
from herringbone.slots.folder import LockBusyError, SlotsFolder, Turn, View, cpu_shares, slots_path, user_name
from herringbone.slots.line import Granted, Waiting, can_ever_start, decide, foreign_text, own_numbers, too_much
from herringbone.slots.release import leave, poke_next
from herringbone.slots.ticket import Ticket, Wants
from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.protocols.controller_config import ClaimConfig
    from herringbone.slots.probe import Probe

_RANDOM_BYTES = 6


class Line:
    """The line of this machine; `probe` knows its GPUs."""

    def __init__(self, folder: SlotsFolder, probe: Probe, environ: Mapping[str, str]) -> None:
        self.folder, self._probe, self._environ = folder, probe, environ
        self._devices: Devices | None = None

    @property
    def devices(self) -> Devices:
        """The machine's devices, asked for until the driver answers."""
        if self._devices is None or not self._devices.gpus:
            gpus = tuple(gpu for _, uuid, parts in parse_listing(self._probe.listing()) for gpu in (parts or [uuid]))
            # One share at least: without it, a job that has a machine without GPUs alone would have nothing to claim.
            self._devices = Devices(gpus=gpus, shares=max(1, cpu_shares(self._environ)))
        return self._devices

    def enter(
        self,
        job: str,
        *,
        home: str,
        wants: Wants,
        priority: int = 0,
        max_run: float = 0.0,
        place: Place | None = None,
        client: int = 0,
    ) -> Claim:
        """Enter the line as its last job, or at the place that the job has in the lines of other machines.

        `client` is the process on this machine that submits the job, 0 where there is none. Raises `UnsupportedError`
        for what the machine can never give.
        """
        if not can_ever_start(wants, self.devices):
            raise UnsupportedError(too_much(wants, len(self.devices.gpus), self.devices.shares))
        mark, arrival = (new_mark(), None) if place is None else place
        with self.folder.locked():
            ticket = Ticket(
                name=f"{os.getuid()}.{job}.{mark}", job=job, user=user_name(os.getuid()), home=home,
                arrival=time.time() if arrival is None else arrival, priority=priority, wants=wants, max_run=max_run,
                client=client,
            )  # fmt: skip
            return Claim(self, ticket, self.folder.add(ticket))

    def with_foreign(self, view: View, processes: str, client: int) -> Devices:
        """Return the devices, with those that processes outside of Herringbone use; those of the client come last."""
        claimed = [device for ticket in view.tickets for device in ticket.granted or ()]
        used = gpus_of(processes, client)
        gpus = tuple(sorted(self.devices.gpus, key=lambda gpu: gpu in used))
        return replace(self.devices, gpus=gpus, foreign=foreign_use(processes, claimed, client))

    def processes(self, wants: Wants) -> str:
        """Return the processes that use GPUs; a job without GPUs need not know."""
        return self._probe.processes() if wants.gpus else ""


class Place(NamedTuple):
    """A job's place in the lines of several machines: the random part of its tickets, and the time of its arrival."""

    mark: str
    arrival: float | None


class Claim:
    """A ticket that this process, or one that it has handed the descriptor to, keeps alive.

    `is_handed_over`: another process has the job. It leaves the line and frees the devices, and this one must not.
    """

    def __init__(self, line: Line, ticket: Ticket, descriptor: int) -> None:
        self._line, self.ticket, self.descriptor = line, ticket, descriptor
        self.is_handed_over = False
        # What `advance` has noted of the user's grant; a job that does not start must not cost the user a turn.
        self._turn: Turn | None = None

    @property
    def config(self) -> ClaimConfig:
        """The claim for the controller's config."""
        return {
            "folder": self._line.folder.path,
            "ticket": self.ticket.name,
            "descriptor": self.descriptor,
            "devices": list(self.ticket.granted or ()),
        }

    @property
    def facts(self) -> dict[str, Any]:
        """The devices that the job was granted, and the seconds since 1970 of its arrival and of the grant."""
        ticket = self.ticket
        return {"Devices": list(ticket.granted or ()), "Arrival": ticket.arrival, "Granted": ticket.granted_at}

    def look(self) -> Granted | Waiting:
        """Return what `advance` would, and take nothing."""
        if self.ticket.granted is not None:
            return Granted(self.ticket.granted)
        view = self._line.folder.read()
        decision = decide(view.tickets, self._line.devices, view.turns, self.ticket.name)
        if isinstance(decision, Granted) and self.ticket.wants.gpus:
            devices = self._line.with_foreign(view, self._line.processes(self.ticket.wants), self.ticket.client)
            return decide(view.tickets, devices, view.turns, self.ticket.name)
        return decision

    def compare(self, number: int, turn: float) -> tuple[int, float]:
        """Note a job's worst number and turn in the lines of other machines; return those of this one."""
        folder = self._line.folder
        if (number, turn) != (self.ticket.number, self.ticket.turn):
            with folder.locked():
                ticket = msgspec.structs.replace(self.ticket, number=number, turn=turn)
                folder.replace(ticket)
                self.ticket = ticket
        view = folder.read()
        return own_numbers(view.tickets, view.turns, self.ticket.name)

    def give_back(self) -> None:
        """Wait again, at the old place, for devices that are of no use without those of another machine."""
        folder = self._line.folder
        with folder.locked():
            self.ticket = msgspec.structs.replace(self.ticket, granted=None, granted_at=None)
            folder.replace(self.ticket)
            self._return_turn()
        poke_next(folder)

    def advance(self) -> Granted | Waiting:
        """Return the job's place, or take the devices if it is its turn."""
        name, folder, wants = self.ticket.name, self._line.folder, self.ticket.wants
        if self.ticket.granted is not None:
            return Granted(self.ticket.granted)
        view = folder.read()
        decision = decide(view.tickets, self._line.devices, view.turns, name)
        if isinstance(decision, Waiting):
            return decision
        # Asked before the lock is taken: a driver may need a second.
        processes = self._line.processes(wants)
        with folder.locked():
            view = folder.read()
            devices = self._line.with_foreign(view, processes, self.ticket.client)
            decision = decide(view.tickets, devices, view.turns, name)
            if isinstance(decision, Granted):
                ticket = msgspec.structs.replace(self.ticket, granted=decision.devices, granted_at=time.time())
                # In this order: a process that is killed in between has lost a turn, and nobody has a device for free.
                self._turn = folder.take_turn()
                folder.replace(ticket)
                # Only now: a full disk leaves a ticket that waits.
                self.ticket = ticket
            elif (note := foreign_text(decision)) != self.ticket.note:
                # `ls` shows it, and does not ask the driver.
                self.ticket = msgspec.structs.replace(self.ticket, note=note)
                folder.replace(self.ticket)
        # What is left may be enough for others, who also look by themselves: no error undoes what was granted.
        if isinstance(decision, Granted):
            with contextlib.suppress(OSError):
                poke_next(folder)
        return decision

    def leave(self) -> None:
        """Leave the line, or free the devices, and wake those who wait; the job has not started."""
        if not self.is_handed_over:
            # A lock that somebody keeps must not keep this job's devices from others.
            with contextlib.suppress(LockBusyError, OSError):
                if self._turn is not None:
                    with self._line.folder.locked():
                        self._return_turn()
            leave(self._line.folder, self.ticket.name)

    def sign(self, waiter: str) -> None:
        """Note which process holds the place, so that those behind it see when somebody has stopped that process."""
        with contextlib.suppress(LockBusyError, OSError), self._line.folder.locked():
            ticket = msgspec.structs.replace(self.ticket, waiter=waiter)
            self._line.folder.replace(ticket)
            self.ticket = ticket

    def touch(self) -> None:
        """Keep a clean-up of old files in /tmp away from the ticket."""
        self._line.folder.touch(self.ticket.name)

    def _return_turn(self) -> None:
        """Undo the note of the grant, if there is one. Requires the lock."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._line.folder.return_turn(turn)

    def close(self) -> None:
        """Give up this process's hold on the ticket; another process may have one."""
        os.close(self.descriptor)


def new_mark() -> str:
    """Return the random part of a new ticket's name."""
    return os.urandom(_RANDOM_BYTES).hex()


def open_line(environ: Mapping[str, str], probe: Probe) -> Line | None:
    """Return the line of this machine; None where HERRINGBONE_SLOTS is off."""
    path = slots_path(environ)
    return None if path is None else Line(SlotsFolder(path), probe, environ)
