"""The control channel: a link from every other host to the first one, for events and orders.

    first host (Listener)                        another host (Connector)
  [1] challenge ------------------------------>
  [2]           <------------------------------  host, its own challenge, proof for the first host's challenge
  [3] proof for the other's challenge -------->
  [4] orders    ------------------------------>
                <------------------------------  events
  [5] alive     <---------------------------->   alive        every heartbeat; three missed ones: lost

Each side proves that it holds the job's secret (HMAC-SHA256 over both challenges) and never shows the secret. Nothing
in this module blocks: a client that connects and falls silent costs a buffer of a few bytes.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from herringbone_entry.channel.address import Address
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.event_loop import Loop

MISSED_HEARTBEATS = 3
# A link checks for silence this often in a heartbeat, so it notices three missed ones before the fourth is over.
_CHECKS_PER_HEARTBEAT = 4
# Limits for clients that have not proved themselves: they must not fill this host's memory, nor its descriptors.
_HELLO_BYTES = 4_096
_MAX_UNPROVEN = 64
_RETRY_SECONDS = 0.05


def proof(key: bytes, role: str, host: str, theirs: str, ours: str) -> str:
    """Return the answer to a challenge that only a holder of the key can compute.

    The role is part of it: otherwise a client could send the first host's own proof back to it as its own.
    """
    return hmac.digest(key, f"{role}\0{host}\0{theirs}\0{ours}".encode(), "sha256").hex()


class Link:
    """Connection to a host that has proved itself: sends, receives, and notices silence [5].

    `on_lost` gets the length of the silence in words, or an empty text when the connection ended.
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
        # A link belongs to the loop's thread alone, so its members need no lock.
        self._watched = False
        # Silence is counted in beats of our own, not in seconds. After a moment in which the whole machine stood
        # still (a suspended laptop, a virtual machine that is moved) both sides are late, and neither is lost.
        self._beats = self._silent_beats = 0
        # Read by `send` and by timers that run after the end.
        self.closed = False
        loop.read(wire.fileno(), self._receive)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. The host counts as lost when it is gone, or has read nothing until its buffer was full."""
        if self.closed:
            return
        try:
            self._wire.send(message)
        except OSError:
            self._lose()

    def watch(self) -> None:
        """Expect heartbeats from now on.

        Before the job starts a host may install packages for minutes, outside its loop, and send none.
        """
        if not self._watched:
            self._watched = True
            self._beat()

    def close(self) -> None:
        """Close the connection without calling `on_lost`; a second call does nothing."""
        if not self.closed:
            self.closed = True
            # The loop must forget the descriptor before its number can be used again.
            self._loop.forget(self._wire.fileno())
            self._wire.close()

    def _beat(self) -> None:
        if self.closed:
            return
        # Strictly more: the beat in which the last message arrived does not count.
        if self._silent_beats > _CHECKS_PER_HEARTBEAT * MISSED_HEARTBEATS:
            self._lose(f"silent for {MISSED_HEARTBEATS} heartbeats of {self._heartbeat:g} s")
            return
        self._silent_beats += 1
        if self._beats % _CHECKS_PER_HEARTBEAT == 0:
            # One heartbeat per interval, although the check for silence runs more often.
            self.send({"kind": "alive"})
        self._beats += 1
        self._loop.later(self._heartbeat / _CHECKS_PER_HEARTBEAT, self._beat)

    def _receive(self) -> None:
        try:
            messages = self._wire.receive()
        except (EOFError, WireError):
            self._lose()
            return
        # Any bytes are a sign of life, also a part of a message.
        self._silent_beats = 0
        for message in messages:
            if message.get("kind") != "alive":
                self._on_message(message)

    def _lose(self, silence: str = "") -> None:
        if not self.closed:
            self.close()
            self._on_lost(silence)


class Listener:
    """Accepts the other hosts on the first one, and closes once all of them have come.

    `on_join` gets the name and the open wire of a host that has proved itself.
    """

    def __init__(
        self, address: Address, key: bytes, expected: Sequence[str], loop: Loop, on_join: Callable[[str, Wire], None]
    ) -> None:
        self._address, self._key, self._missing = address, key, set(expected)
        self._loop, self._on_join = loop, on_join
        # Connected clients that have not proved themselves, by descriptor, the oldest first.
        self._unproven: dict[int, Wire] = {}
        # Some room for strangers: a full queue would delay a host's connection.
        self._socket = address.listen(len(expected) + 16)
        loop.read(self._socket.fileno(), self._accept)

    def _close(self) -> None:
        """Stop listening: all hosts have come, so nobody else may."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        # A copy, because `_disconnect` changes the dict.
        for wire in list(self._unproven.values()):
            self._disconnect(wire)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # the client left between the loop's look and this call
        self._address.set_up(connection)
        if len(self._unproven) >= _MAX_UNPROVEN:
            # Drop the oldest one: a host of the job proves itself at once, and tries again if it was too slow.
            self._disconnect(next(iter(self._unproven.values())))
        wire = Wire(connection, limit=_HELLO_BYTES)
        number = wire.fileno()
        self._unproven[number] = wire
        # [1] A fresh challenge for each connection: an old proof is worth nothing.
        challenge = secrets.token_hex(32)
        self._loop.read(number, lambda: self._check_proof(wire, challenge))
        try:
            wire.send({"challenge": challenge})
        except OSError:
            self._disconnect(wire)

    def _check_proof(self, wire: Wire, challenge: str) -> None:
        number = wire.fileno()
        try:
            messages = wire.receive()
            if not messages:
                return
            host, theirs = str(messages[0].get("host")), str(messages[0].get("challenge"))
            expected = proof(self._key, "host", host, challenge, theirs)
            # `compare_digest` takes the same time for every wrong proof, so that its duration reveals no prefix.
            # A host that has joined is no longer missing: nobody can take its place.
            if host not in self._missing or not hmac.compare_digest(expected, str(messages[0].get("proof"))):
                raise WireError("it does not hold the secret of this job")
            # [3]
            wire.send({"proof": proof(self._key, "first", host, theirs, challenge)})
        except (EOFError, WireError, OSError, TypeError):
            self._disconnect(wire)
            return
        self._missing.remove(host)
        self._loop.forget(number)
        del self._unproven[number]
        wire.trust()
        # With all hosts joined, an open port would only serve attackers.
        if not self._missing:
            self._close()
        self._on_join(host, wire)

    def _disconnect(self, wire: Wire) -> None:
        del self._unproven[wire.fileno()]
        self._loop.forget(wire.fileno())
        wire.close()


class Connector:
    """Connects another host to the first one: tries until the first host listens, then proves itself.

    `on_join` gets the open wire. `on_gone` is called when the first host did listen, and no longer does.
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
        # One challenge is enough: this side answers a single listener, and proves itself to it once.
        self._ours = secrets.token_hex(32)
        self._theirs: str | None = None
        self._try()

    def _try(self) -> None:
        try:
            self._address.connect(self._loop, self._connected)
        except ConnectionRefusedError:
            # In the loop's next turn: the caller may still be in its constructor.
            self._loop.later(0.0, self._on_gone)

    def _connected(self, connection: socket.socket | None) -> None:
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
                    # [2] Answer the first host's challenge, and send one of our own.
                    self._theirs = str(message.get("challenge"))
                    ours = proof(self._key, "host", self._host, self._theirs, self._ours)
                    wire.send({"host": self._host, "challenge": self._ours, "proof": ours})
                    continue
                expected = proof(self._key, "first", self._host, self._ours, self._theirs)
                if not hmac.compare_digest(expected, str(message.get("proof"))):
                    raise WireError("the first host does not hold the secret of this job")
                self._loop.forget(wire.fileno())
                self._on_join(wire)
                return
        except (EOFError, WireError, OSError, TypeError):
            self._loop.forget(wire.fileno())
            wire.close()
            self._on_gone()
