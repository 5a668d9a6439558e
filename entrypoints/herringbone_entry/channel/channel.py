"""The control channel: a link from every other host to the first one, for events and orders.

    first host (Listener)                        another host (Connector)
  [1] challenge ------------------------------>
  [2]           <------------------------------  host, its own challenge, proof for the first host's challenge
  [3] proof for the other's challenge -------->
  [4] orders    ------------------------------>
                <------------------------------  events
  [5] alive     <---------------------------->   alive        every heartbeat; three missed ones: lost

Each side proves that it holds the job's secret (HMAC-SHA256 over both challenges) and never shows the secret. From [4]
on each frame carries a MAC of this connection's own keys (`session`): whoever sits between two hosts can end their
link, and can say nothing in their name. Nothing in this module blocks: a client that connects and falls silent costs a
buffer of a few bytes.

A peer without a proof costs its own connection, whatever it sends. A host of the job whose connection ends before [3]
tries again.
"""

from __future__ import annotations

import errno
import hmac
import re
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from herringbone_contract.channel.session import proof, session
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
_MAX_RETRY_SECONDS = 1.0
_CHALLENGE_BYTES = 32
_CHALLENGE = re.compile(f"[0-9a-f]{{{2 * _CHALLENGE_BYTES}}}")
# `accept` reports these when the process or the machine has no room for another connection, which stays in the queue.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _challenge_of(message: Message) -> str:
    """Return the peer's challenge: one form alone, so that a challenge cannot look like two members of a proof."""
    challenge = message.get("challenge")
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise WireError("its challenge is none")
    return challenge


def _check(message: Message, expected: str) -> None:
    # `compare_digest` takes the same time for every wrong proof, so that its duration reveals no prefix.
    if not hmac.compare_digest(expected.encode(), str(message.get("proof")).encode("utf-8", "replace")):
        raise WireError("it does not hold the secret of this job")


class Link:
    """Connection to a host that has proved itself: sends, receives, and notices silence [5].

    `on_lost` gets the reason in words: the length of the silence, or a frame that failed its check; an empty text when
    the connection ended.
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
        # Frames behind the handshake's last one may have arrived with it, and the socket will not report them again.
        loop.later(0.0, lambda: self._take(wire.complete))

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
        self._take(self._wire.receive)

    def _take(self, messages_of: Callable[[], list[Message]]) -> None:
        if self.closed:
            return
        try:
            messages = messages_of()
        except EOFError:
            self._lose()
            return
        except WireError as error:
            self._lose(str(error))
            return
        # Any bytes are a sign of life, also a part of a message.
        self._silent_beats = 0
        for message in messages:
            if message.get("kind") != "alive":
                self._on_message(message)

    def _lose(self, reason: str = "") -> None:
        if not self.closed:
            self.close()
            self._on_lost(reason)


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
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._make_room()
            return  # or the client left between the loop's look and this call
        if len(self._unproven) >= _MAX_UNPROVEN:
            # Drop the oldest one: a host of the job proves itself at once, and tries again if it was too slow.
            self._disconnect(next(iter(self._unproven.values())))
        wire = Wire(connection, limit=_HELLO_BYTES)
        number = wire.fileno()
        self._unproven[number] = wire
        # [1] A fresh challenge for each connection: an old proof is worth nothing.
        challenge = secrets.token_hex(_CHALLENGE_BYTES)
        self._loop.read(number, lambda: self._receive_proof(wire, challenge))
        try:
            self._address.set_up(connection)
            wire.send({"challenge": challenge})
        except OSError:
            self._disconnect(wire)

    def _make_room(self) -> None:
        """Free a descriptor, or look away for a moment: the loop would come back to the waiting client at once."""
        if self._unproven:
            self._disconnect(next(iter(self._unproven.values())))
            return
        self._loop.forget(self._socket.fileno())
        self._loop.later(_RETRY_SECONDS, lambda: self._loop.read(self._socket.fileno(), self._accept))

    def _receive_proof(self, wire: Wire, challenge: str) -> None:
        try:
            messages = wire.receive(1)
            if not messages:
                return
            host = self._check_proof(wire, messages[0], challenge)
        except Exception:  # noqa: BLE001 - whatever a stranger's bytes lead to ends the stranger's connection alone
            self._disconnect(wire)
            return
        self._missing.remove(host)
        self._loop.forget(wire.fileno())
        del self._unproven[wire.fileno()]
        # With all hosts joined, an open port would only serve attackers.
        if not self._missing:
            self._close()
        self._on_join(host, wire)

    def _check_proof(self, wire: Wire, message: Message, challenge: str) -> str:
        """Check [2], answer it, and return the host's name; raises anything for a stranger's bytes."""
        host, theirs = str(message.get("host")), _challenge_of(message)
        # A host that has joined is no longer missing: nobody can take its place.
        if host not in self._missing:
            raise WireError("it is none of the hosts that this one waits for")
        _check(message, proof(self._key, "host", host, challenge, theirs))
        # [3]
        wire.send({"proof": proof(self._key, "first", host, theirs, challenge)})
        wire.trust(session(self._key, host, challenge, theirs, is_first=True))
        return host

    def _disconnect(self, wire: Wire) -> None:
        del self._unproven[wire.fileno()]
        self._loop.forget(wire.fileno())
        wire.close()


class Connector:
    """Connects another host to the first one: tries until the first host listens, then proves itself.

    `on_join` gets the open wire. `on_gone` is called when the first host did listen, and no longer does.
    `times_refused` counts the connections that ended before the first host's proof.
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
        self.times_refused = 0
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
        wire = Wire(connection, limit=_HELLO_BYTES)
        try:
            self._address.set_up(connection)
        except OSError:
            self._try_again(wire)
            return
        self._await(wire, self._answer)

    def _await(self, wire: Wire, step: Callable[[Wire, Message], bool]) -> None:
        """Run `step` on the next message of a first host that has not proved itself; join when it returns True."""

        def receive() -> None:
            try:
                messages = wire.receive(1)
                if not messages:
                    return
                self._loop.forget(wire.fileno())
                proven = step(wire, messages[0])
            except Exception:  # noqa: BLE001 - somebody else may listen in the first host's place, and send anything
                self._try_again(wire)
                return
            if proven:
                self._on_join(wire)

        self._loop.read(wire.fileno(), receive)

    def _answer(self, wire: Wire, message: Message) -> bool:
        """[2] Answer the first host's challenge, and send one of our own."""
        theirs, ours = _challenge_of(message), secrets.token_hex(_CHALLENGE_BYTES)
        wire.send({"host": self._host, "challenge": ours, "proof": proof(self._key, "host", self._host, theirs, ours)})

        def verify(wire: Wire, message: Message) -> bool:
            _check(message, proof(self._key, "first", self._host, ours, theirs))
            wire.trust(session(self._key, self._host, theirs, ours))
            return True

        self._await(wire, verify)
        return False

    def _try_again(self, wire: Wire) -> None:
        # The first host shows out connections when too many strangers come; only a time limit ends the attempts.
        self.times_refused += 1
        self._loop.forget(wire.fileno())
        wire.close()
        # A host with another secret would otherwise come back twenty times a second.
        self._loop.later(min(_RETRY_SECONDS * self.times_refused, _MAX_RETRY_SECONDS), self._try)
