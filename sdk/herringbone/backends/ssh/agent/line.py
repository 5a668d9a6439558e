"""A job's claim on this machine, which the agent holds for a client until the job's controller has it.

    claim                  take the devices now, or say who has them: a job that does not wait
    enter, look, take      wait in this machine's line; the client takes when enough machines are ready at once
    give_back, leave       another machine was not ready after all; the job does not need this one

The agent ends with its connection, and the ticket with it. A client that loses its connection enters again at its old
place. Two things are claimed: devices in the machine's line, which all users share (`herringbone.slots`), and the work
folder's lock, which jobs with GPUs of their own share with each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from herringbone.backends.ssh.agent.lock import MachineLock
from herringbone.backends.ssh.agent.messages import Message
from herringbone.records.home import Home
from herringbone.slots.claim import Claim, Line, Place, open_line
from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus
from herringbone.slots.folder import SHARES_VARIABLE
from herringbone.slots.line import Granted, Waiting, foreign_text, line_text, rank_of
from herringbone.slots.probe import NvidiaSmi
from herringbone.slots.ticket import Wants
from herringbone.system.processes import identity
from herringbone_contract.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.slots.probe import Probe

# A client that waits asks far more often. One that is silent for so long is asleep or cut off, and must not keep the
# machine from others; it gets its place back when it enters again.
SILENCE_SECONDS = 60.0


class MachineLine:
    """The claim of one connection; `home` is the work folder.

    >>> line = MachineLine(Home(Path("work")))                                          # doctest: +SKIP
    >>> line.claim({"job": "digits-1", "client": "me@laptop", "gpus": 2}, b"")          # doctest: +SKIP
    {}
    """

    def __init__(
        self, home: Home, *, environ: Mapping[str, str] = os.environ, make_probe: Callable[[], Probe] = NvidiaSmi
    ) -> None:
        self._home, self._environ, self._make_probe = home, environ, make_probe
        self.lock = MachineLock(home.path / "lock")
        # The lock's holder until the job's controller takes over.
        self.holder = str(identity(os.getpid()))
        self._request: Message = {}
        # None while this connection claims nothing, and on a machine without a line.
        self.slot: Claim | None = None

    @property
    def verbs(self) -> dict[str, Callable[[Message, bytes], Message]]:
        return {
            "claim": self.claim,
            "enter": self.enter,
            "look": self.look,
            "take": self.take,
            "give_back": self.give_back,
            "leave": lambda *_: self.leave(),
        }

    @property
    def waits(self) -> bool:
        return self.slot is not None and self.slot.ticket.waits

    def claim(self, message: Message, payload: bytes) -> Message:
        """Claim the machine, or a part of it, for a job that does not wait; {} for success."""
        # A retry of the client's request must not fail on its own claim.
        if self._request.get("job") != message["job"] or self.slot is None:
            refusal = self._enter(message)
            if refusal:
                return refusal
        answer = self.take(message, payload)
        if answer:
            self.leave()
        return answer

    def enter(self, message: Message, _: bytes) -> Message:
        """Enter the line; {"never": why} for a job that this machine cannot serve."""
        if refusal := self._enter(message):
            return refusal
        if self.slot is None:
            return {"never": "HERRINGBONE_SLOTS is off there, so it has no line"}
        return {}

    def look(self, message: Message, _: bytes) -> Message:
        """Return the job's place and whether it could start; note what its other machines say of its place.

        `worst` are the job's worst number and turn in all lines.
        """
        if self.slot is None:
            # Left after a silence.
            return {"lost": True}
        number, turn = self.slot.compare(*message["worst"])
        decision, owner = self.slot.look(), None
        waiting = decision if isinstance(decision, Waiting) else Waiting(1)
        note = foreign_text(waiting)
        if waiting is not decision:
            owner = self.lock.blocker(holder=self.holder, shared=self._is_part)
            note = "" if owner is None else f"{owner.get('job')} ({owner.get('client')})"
        return {
            "number": number,
            "turn": turn,
            "ready": waiting is not decision and owner is None,
            "place": waiting.place,
            "rank": rank_of(self.slot.ticket.wants, waiting),
            "text": line_text(waiting, note),
        }

    def take(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        """Take the devices; {} for success, else who has them."""
        if owner := self._lock():
            return owner
        if self.slot is not None and not isinstance(decision := self.slot.advance(), Granted):
            self.lock.release(self.holder)
            return {"busy": _busy_text(decision), "jobs": [ticket.job for ticket in decision.holders]}
        return {}

    def give_back(self, message: Message, _: bytes) -> Message:  # noqa: ARG002
        """Wait again, at the old place."""
        if self.slot is not None:
            self.slot.give_back()
        self.lock.release(self.holder)
        return {}

    def leave(self) -> Message:
        """Give up the place and what was taken."""
        slot, self.slot = self.slot, None
        self._request = {}
        if slot is not None:
            slot.leave()
            slot.close()
        self.lock.release(self.holder)
        return {}

    def hand_over(self) -> Claim | None:
        """Return the claim for the job's controller: from now on this connection's end does not free it."""
        slot, self.slot = self.slot, None
        return slot

    def _enter(self, message: Message) -> Message:
        if self.slot is not None:
            self.leave()
        self._request = message
        environ, gpus, shares = self._environ, message.get("gpus"), message.get("shares")
        if message.get("cpu_shares"):
            environ = {**environ, SHARES_VARIABLE: str(message["cpu_shares"])}
        if message.get("visible") is not None:
            environ = {**environ, VISIBLE_VARIABLE: message["visible"]}
        probe = self._make_probe()
        line = open_line(environ, probe)
        if line is None:
            return {}
        try:
            self.slot = line.enter(
                message["job"],
                home=str(self._home.path),
                wants=_wants(line, gpus, shares, probe, environ, beside_foreign=message.get("beside_foreign", False)),
                priority=message.get("priority", 0),
                max_run=message.get("max_run", 0.0),
                place=Place(message["mark"], message["arrival"]) if "mark" in message else None,
            )
        except UnsupportedError as error:
            return {"never": str(error)}
        return {}

    @property
    def _is_part(self) -> bool:
        # Without a line, nothing but the lock keeps two jobs apart.
        return self.slot is not None and bool(self._request.get("gpus") or self._request.get("shares"))

    def _lock(self) -> Message:
        """Take the lock of the work folder; {} for success, else who has it."""
        claim = {name: self._request[name] for name in ("job", "client")}
        owner = self.lock.acquire(claim, holder=self.holder, shared=self._is_part)
        if owner is None:
            return {}
        texts = (f"runs {owner.get('job', '?')} of {owner.get('client', '?')}", self.lock.unseen(owner))
        return {"busy": " ".join(filter(None, texts)), "jobs": [owner.get("job", "?")]}


def _wants(
    line: Line,
    gpus: int | None,
    shares: int | None,
    probe: Probe,
    environ: Mapping[str, str],
    *,
    beside_foreign: bool,
) -> Wants:
    """Return what a job claims here: GPUs, or shares, or without either the whole machine."""
    if gpus:
        return Wants(gpus=gpus, among=find_gpus(probe.listing(), environ) if VISIBLE_VARIABLE in environ else ())
    if shares:
        return Wants(shares=shares)
    return Wants(gpus=len(line.devices.gpus), shares=line.devices.shares, beside_foreign=beside_foreign)


def _busy_text(waiting: Waiting) -> str:
    """Return who has a machine, in words.

    >>> _busy_text(Waiting(1, foreign=(("GPU-0", "process 7"),)))
    'process 7 on GPU-0, outside Herringbone'
    """
    texts = [f"runs {ticket.job} of {ticket.user}" for ticket in waiting.holders[:2]]
    texts += [f"{ticket.job} of {ticket.user} waits in line before" for ticket in waiting.ahead[: 2 - len(texts)]]
    return "; ".join([*texts, *filter(None, [foreign_text(waiting)])])
