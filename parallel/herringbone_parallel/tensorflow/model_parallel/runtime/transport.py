"""The mail between ranks: one authenticated connection to each of the others, a thread that writes and one that reads.

Where two ranks share a host it is a local socket, else TCP. Whoever reads never waits for the step, so whoever writes
never waits for long, and messages may come in any order.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.join import local_address
from herringbone_parallel.reduce.join.listener import Acceptor, listen
from herringbone_parallel.reduce.join.listener import connect as connect_to
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.tensorflow.model_parallel.runtime.messages import Key, Kind, Message, parts, receive

_CONNECT_SECONDS = 30.0
_GOODBYE_SECONDS = 5.0
# A host that has vanished is noticed after about so long, in milliseconds.
_SILENCE_MS = 4000
# What the kernel may hold of a local connection, so that whoever sends need not wait for who reads. Linux doubles it.
_UNDER_WAY_BYTES = 4 << 20
# How often a rank that waits asks whether the others still live.
_LOOK_SECONDS = 0.5


class PeerFailedError(ParallelError):
    """Another rank failed, or is gone; if it failed, its own traceback says where."""


@dataclass(slots=True)
class _Peer:
    rank: int
    label: str
    connection: socket.socket
    outbox: queue.SimpleQueue[list[Any] | None] = field(default_factory=queue.SimpleQueue)
    # How much the outbox has that is not sent, the one that is being sent included; changed under `turn`.
    waiting: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def send(self, buffers: list[Any]) -> None:
        """Send at once what the connection takes, and leave the rest to the thread that writes.

        A rank may have one core only. A thread that is woken there to send would wait until the computation, which goes
        on, lets it.
        """
        with self.turn:
            if not self.waiting:
                buffers = _send_what_fits(self.connection, buffers)
            if buffers:
                self.waiting += 1
                self.outbox.put(buffers)


class Transport:
    """This rank's mail.

        transport.post(1, plan, Key(step=3, microbatch=0, edge=2), array)
        transport.wait(lambda: transport.has(key))
        array = transport.take(key)

    `post` returns at once; the array is not changed until it has left. Once a rank is lost, `wait` raises
    `PeerFailedError`, and names it. `failure` says why, if so, one is whose connection stands: a process that
    was stopped.
    """

    def __init__(
        self, connections: Mapping[int, tuple[str, socket.socket]], failure: Callable[[], str | None] = lambda: None
    ) -> None:
        self._peers: dict[int, _Peer] = {}
        self._changed = threading.Condition()
        self._tensors: dict[Key, tuple[int, Any]] = {}
        self._objects: dict[int, deque[bytes]] = defaultdict(deque)
        self._receipts: dict[int, int] = defaultdict(int)
        # How many tensors have come.
        self.arrived = 0
        self._lost: str | None = None
        # What others said when a step failed there, by the step.
        self._failed: dict[int, str] = {}
        self._left: set[int] = set()
        self._failure = failure
        self._closing = False
        self._writers: list[threading.Thread] = []
        for rank, (label, connection) in connections.items():
            peer = _Peer(rank, label, connection)
            self._peers[rank] = peer
            self._writers.append(threading.Thread(target=self._write, args=(peer,), daemon=True))
            threading.Thread(target=self._read, args=(peer,), daemon=True).start()
        for writer in self._writers:
            writer.start()

    @property
    def peers(self) -> list[int]:
        return list(self._peers)

    def post(self, target: int, plan: int, key: Key, array: Any) -> None:
        """Send a tensor."""
        self._peers[target].send(parts(Message(Kind.TENSOR, plan, key, array)))

    def unsent(self, target: int) -> int:
        """Return how many messages to this rank are left to the thread that writes."""
        return self._peers[target].waiting

    def has(self, key: Key) -> bool:
        """Say whether this tensor is here."""
        return key in self._tensors

    def take(self, key: Key, plan: int) -> Any:
        """Return a tensor that is here; raises `ParallelError` when its sender has cut another step than this rank."""
        with self._changed:
            sent, array = self._tensors.pop(key)
        if sent != plan:
            raise ParallelError(
                "the ranks run different steps, or the same one with arguments of other shapes: every rank of a"
                " pipeline calls the same step functions, in the same order, on batches of the same shape"
            )
        return array

    def forget(self, until: int) -> None:
        """Drop what came for steps up to this one and was not taken."""
        with self._changed:
            for key in [key for key in self._tensors if key.step <= until]:
                del self._tensors[key]

    def wait(
        self,
        ready: Callable[[], bool],
        needed: Callable[[], set[int]],
        step: int = 0,
        seconds: float | None = None,
    ) -> None:
        """Wait until `ready`; `needed` are the ranks without which it never will be, `step` is the one under way."""

        def over() -> bool:
            return ready() or self._lost is not None or step in self._failed or bool(self._left & needed())

        with self._changed:
            until = math.inf if seconds is None else time.monotonic() + seconds
            while not self._changed.wait_for(over, max(0.0, min(_LOOK_SECONDS, until - time.monotonic()))):
                said = self._failure()
                if said is None and time.monotonic() >= until:
                    said = f"nothing came from {self._peers[min(needed())].label} within {seconds:.0f} s"
                if said is not None:
                    raise PeerFailedError(said)
            if ready():
                return
            if step in self._failed:
                raise PeerFailedError(self._failed[step])
            if self._lost is not None:
                raise PeerFailedError(self._lost)
            gone = min(self._left & needed())
            raise PeerFailedError(f"{self._peers[gone].label} has ended, and this rank still waits for it")

    def send_object(self, target: int, data: bytes) -> None:
        """Send bytes that `receive_object` returns there."""
        self._peers[target].send(parts(Message(Kind.OBJECT, 0, Key(), data)))

    def receive_object(self, source: int, seconds: float | None = None) -> bytes:
        """Wait for bytes from a rank, so long at most, tell it that they came, and return them."""
        self.wait(lambda: bool(self._objects[source]), lambda: {source}, seconds=seconds)
        with self._changed:
            data = self._objects[source].popleft()
        self._peers[source].send(parts(Message(Kind.RECEIPT, 0, Key(), b"")))
        return data

    def wait_for_receipt(self, target: int) -> None:
        """Wait until what was sent to a rank has been received there."""
        self.wait(lambda: self._receipts[target] > 0, lambda: {target})
        with self._changed:
            self._receipts[target] -= 1

    def tell_failure(self, step: int, said: str) -> None:
        """Let all others know that this rank failed in a step; they fail in it too, and may go on to the next."""
        for peer in self._peers.values():
            peer.send(parts(Message(Kind.FAILED, 0, Key(step), said.encode())))

    def close(self) -> None:
        """Take leave of the others: they will not wait for this rank."""
        self._closing = True
        for peer in self._peers.values():
            peer.send(parts(Message(Kind.GOODBYE, 0, Key(), b"")))
            peer.outbox.put(None)
        until = time.monotonic() + _GOODBYE_SECONDS
        for writer in self._writers:
            writer.join(max(0.0, until - time.monotonic()))
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            peer.connection.close()

    def _write(self, peer: _Peer) -> None:
        while (buffers := peer.outbox.get()) is not None:
            try:
                for buffer in buffers:
                    peer.connection.sendall(buffer)
            except OSError:
                # The reader says what happened.
                return
            with peer.turn:
                peer.waiting -= 1

    def _read(self, peer: _Peer) -> None:
        try:
            while (message := receive(peer.connection)) is not None:
                with self._changed:
                    self._sort(peer, message)
                    self._changed.notify_all()
                del message
        except (OSError, ValueError) as error:
            self._lose(peer, f"{peer.label} is lost: {error}")
            return
        self._lose(peer, f"{peer.label} is lost: its connection was closed without a word")

    def _sort(self, peer: _Peer, message: Message) -> None:
        if message.kind is Kind.TENSOR:
            self._tensors[message.key] = message.plan, message.content
            self.arrived += 1
        elif message.kind is Kind.OBJECT:
            self._objects[peer.rank].append(message.content)
        elif message.kind is Kind.RECEIPT:
            self._receipts[peer.rank] += 1
        elif message.kind is Kind.GOODBYE:
            self._left.add(peer.rank)
        else:
            self._failed.setdefault(message.key.step, f"{peer.label} failed: {message.content.decode()}")

    def _lose(self, peer: _Peer, said: str) -> None:
        with self._changed:
            if not self._closing and peer.rank not in self._left and self._lost is None:
                self._lost = said
            self._changed.notify_all()


def _send_what_fits(connection: socket.socket, buffers: list[Any]) -> list[Any]:
    """Send what goes without waiting, and return what is left."""
    left = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    with contextlib.suppress(OSError):
        while left:
            sent = connection.sendmsg(left, (), socket.MSG_DONTWAIT)
            while left and sent >= left[0].nbytes:
                sent -= left.pop(0).nbytes
            if left:
                left[0] = left[0][sent:]
    return left


def connect(engine: Engine, settings: Settings) -> Transport:
    """Connect to all other ranks; each of them must call it. Raises `ParallelError` naming who cannot be reached."""
    came: dict[int, socket.socket] = {}
    changed = threading.Condition()

    def visit(connection: socket.socket, hello: dict[str, Any]) -> None:
        if hello["meeting"] != meeting:
            raise ParallelError("two jobs with the same token share addresses")
        handshake.send(connection, {})
        with changed:
            came[int(hello["rank"])] = connection
            changed.notify_all()

    folder = Path(tempfile.mkdtemp(prefix="hb-mail-"))
    listener = listen(local_address(settings))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(folder / "s"))
    local.listen(64)
    own = [settings.host, *listener.getsockname()[:2], str(folder / "s"), secrets.token_hex(8)]
    roster = [json.loads(data) for data in all_gather(engine, json.dumps(own).encode())]
    meeting = roster[0][-1]
    acceptor = Acceptor([listener, local], settings.token, visit)
    until = time.monotonic() + _CONNECT_SECONDS
    found: dict[int, socket.socket] = {}
    try:
        for rank in range(settings.rank):
            host, address, port, path, _ = roster[rank]
            where = path if host == settings.host else (address, port)
            hello = {"meeting": meeting, "rank": settings.rank}
            found[rank], _ = connect_to(where, f"rank {rank} on {host}", settings.token, hello, until)
        with changed:
            higher = set(range(settings.rank + 1, settings.size))
            changed.wait_for(lambda: higher <= set(came), until - time.monotonic())
            if not higher <= set(came):
                absent = min(higher - set(came))
                raise ParallelError(f"rank {absent} on {roster[absent][0]} did not connect: is there a way to here?")
            found.update(came)
    finally:
        acceptor.close()
        shutil.rmtree(folder, ignore_errors=True)
    for connection in found.values():
        watch_over(connection)
    labelled = {rank: (f"rank {rank} on {roster[rank][0]}", found[rank]) for rank in sorted(found)}
    return Transport(labelled, lambda: engine.failure)


def watch_over(connection: socket.socket) -> None:
    """Set a connection up: a local one takes whole messages, one to another host notices that it has vanished."""
    connection.settimeout(None)
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNDER_WAY_BYTES)
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _SILENCE_MS),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
