"""The control channel: a link from every other host to the first one, over which events and orders travel.

    first host                                   another host
      challenge ------------------------------>
                <------------------------------  host, its own challenge, proof for the first host's
      proof for the other's  ----------------->
      orders    ------------------------------>
                <------------------------------  events
      alive     <---------------------------->   alive        every heartbeat; three missed ones: lost

Each proves that it holds the job's secret (HMAC-SHA256 over both challenges) and never shows it. Nothing here ever
blocks: whoever connects and falls silent costs us a buffer of a few bytes.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Sequence

from herringbone_entry.channel.address import Address
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.supervisor.event_loop import Loop

MISSED_HEARTBEATS = 3
# How often in a heartbeat one looks: silence of three is noticed before the fourth is over.
_LOOKS = 4
_GREETING_BYTES = 4_096
_MAX_STRANGERS = 64
_RETRY_SECONDS = 0.05


def proof(key: bytes, role: str, host: str, theirs: str, ours: str) -> str:
    """Return what only a holder of the key can say to that challenge, in that role."""
    return hmac.digest(key, f"{role}\0{host}\0{theirs}\0{ours}".encode(), "sha256").hex()


class Link:
    """One known host at the other end: sends, receives, and notices when it has fallen silent.

    `on_lost` gets in words for how long it was silent; empty where the connection ended.

    Silence is counted in beats of our own, not in seconds: after a moment in which the whole machine stood still (a
    suspended laptop, a virtual machine that is moved) both sides are late, and neither is lost.
    """

    def __init__(
        self,
        wire: Wire,
        loop: Loop,
        *,
        heartbeat: float,
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._wire, self._loop, self._heartbeat = wire, loop, heartbeat
        self._on_message, self._on_lost = on_message, on_lost
        self._watched = False
        self._beats = self._silent_beats = 0
        self.closed = False
        loop.read(wire.fileno(), self._hear)

    def send(self, message: Message) -> None:
        """Send, or find that the host is lost: it is gone, or has not read for so long that its buffer is full."""
        if self.closed:
            return
        try:
            self._wire.send(message)
        except OSError:
            self._lose()

    def watch(self) -> None:
        """From now on, expect signs of life: the other side has nothing left to do that could keep it busy."""
        if not self._watched:
            self._watched = True
            self._beat()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.forget(self._wire.fileno())
            self._wire.close()

    def _beat(self) -> None:
        if self.closed:
            return
        if self._silent_beats > _LOOKS * MISSED_HEARTBEATS:
            self._lose(f"silent for {MISSED_HEARTBEATS} heartbeats of {self._heartbeat:g} s")
            return
        self._silent_beats += 1
        if self._beats % _LOOKS == 0:
            self.send({"kind": "alive"})
        self._beats += 1
        self._loop.later(self._heartbeat / _LOOKS, self._beat)

    def _hear(self) -> None:
        try:
            messages = self._wire.receive()
        except (EOFError, WireError):
            self._lose()
            return
        self._silent_beats = 0
        for message in messages:
            if message.get("kind") != "alive":
                self._on_message(message)

    def _lose(self, silence: str = "") -> None:
        if not self.closed:
            self.close()
            self._on_lost(silence)


class Door:
    """Where the first host lets the others in.

    `on_join` gets the name and the open wire of a host that has proved itself.
    """

    def __init__(
        self, address: Address, key: bytes, expected: Sequence[str], loop: Loop, on_join: Callable[[str, Wire], None]
    ) -> None:
        self._address, self._key, self._missing = address, key, set(expected)
        self._loop, self._on_join = loop, on_join
        self._strangers: dict[int, Wire] = {}
        self._socket = address.listen(len(expected) + 16)
        loop.read(self._socket.fileno(), self._open)

    def _close(self) -> None:
        """All have come: nobody has any more business here."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        for wire in list(self._strangers.values()):
            self._show_out(wire)

    def _open(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # it went away again
        self._address.set_up(connection)
        if len(self._strangers) >= _MAX_STRANGERS:
            self._show_out(next(iter(self._strangers.values())))
        wire = Wire(connection, limit=_GREETING_BYTES)
        number = wire.fileno()
        self._strangers[number] = wire
        challenge = secrets.token_hex(32)
        self._loop.read(number, lambda: self._greet(wire, challenge))
        try:
            wire.send({"challenge": challenge})
        except OSError:
            self._show_out(wire)

    def _greet(self, wire: Wire, challenge: str) -> None:
        number = wire.fileno()
        try:
            messages = wire.receive()
            if not messages:
                return
            host, theirs = str(messages[0].get("host")), str(messages[0].get("challenge"))
            right = proof(self._key, "host", host, challenge, theirs)
            if host not in self._missing or not hmac.compare_digest(right, str(messages[0].get("proof"))):
                raise WireError("it does not hold the secret of this job")
            wire.send({"proof": proof(self._key, "first", host, theirs, challenge)})
        except (EOFError, WireError, OSError, TypeError):
            self._show_out(wire)
            return
        self._missing.remove(host)
        self._loop.forget(number)
        del self._strangers[number]
        wire.trust()
        if not self._missing:
            self._close()
        self._on_join(host, wire)

    def _show_out(self, wire: Wire) -> None:
        del self._strangers[wire.fileno()]
        self._loop.forget(wire.fileno())
        wire.close()


class Knock:
    """How another host gets in at the first host's door: tries until the door is there, then proves itself.

    `on_join` gets the open wire. `on_gone` is called when there was a first host, and there is none any more.
    """

    def __init__(
        self,
        address: Address,
        key: bytes,
        host: str,
        loop: Loop,
        *,
        on_join: Callable[[Wire], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._address, self._key, self._host, self._loop = address, key, host, loop
        self._on_join, self._on_gone = on_join, on_gone
        self._ours = secrets.token_hex(32)
        self._theirs: str | None = None
        self._try()

    def _try(self) -> None:
        try:
            self._address.connect(self._loop, self._greet)
        except ConnectionRefusedError:
            self._loop.later(0.0, self._on_gone)

    def _greet(self, connection: socket.socket | None) -> None:
        if connection is None:
            self._loop.later(_RETRY_SECONDS, self._try)
            return
        self._address.set_up(connection)
        wire = Wire(connection)
        self._loop.read(wire.fileno(), lambda: self._answer(wire))

    def _answer(self, wire: Wire) -> None:
        try:
            for message in wire.receive():
                if self._theirs is None:
                    self._theirs = str(message.get("challenge"))
                    word = proof(self._key, "host", self._host, self._theirs, self._ours)
                    wire.send({"host": self._host, "challenge": self._ours, "proof": word})
                    continue
                right = proof(self._key, "first", self._host, self._ours, self._theirs)
                if not hmac.compare_digest(right, str(message.get("proof"))):
                    raise WireError("the first host does not hold the secret of this job")
                self._loop.forget(wire.fileno())
                self._on_join(wire)
                return
        except (EOFError, WireError, OSError, TypeError):
            self._loop.forget(wire.fileno())
            wire.close()
            self._on_gone()
