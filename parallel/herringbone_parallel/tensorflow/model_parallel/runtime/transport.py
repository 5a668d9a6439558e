"""Sends tensors and objects between ranks: one authenticated connection to each other rank, with two threads.

    step's thread      send -> kernel buffer, as far as it fits;  else -> outbox of the peer
    writer thread      outbox -> kernel buffer, waiting where it is full
    reader thread      kernel buffer -> `_tensors`, `_objects`, `_receipts`, ...; then wakes the step's thread

A connection is a local socket between two ranks of one host, and TCP otherwise. A reader never waits for the step, so
the peer's writer never waits for long, and messages may come in any order. That also rules out a deadlock: two ranks
may both send more than the kernel holds.
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
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection
from herringbone_parallel.reduce.join.listener import Acceptor, listen
from herringbone_parallel.reduce.join.listener import connect as connect_to
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.wire_values import whole
from herringbone_parallel.reduce.joining import local_address
from herringbone_parallel.tensorflow.model_parallel.runtime.messages import (
    Key,
    Kind,
    Message,
    parts,
    receive,
    send_available,
)

_CONNECT_SECONDS = 30.0
_GOODBYE_SECONDS = 5.0
_SILENCE_MS = 4000  # A host that has vanished is noticed after about this time.
# The kernel's buffer of a local connection: a sender need not wait for the reader. Linux doubles the value.
_LOCAL_BUFFER_BYTES = 4 << 20
# A waiting rank looks this often for a peer that has stopped answering.
_LOOK_SECONDS = 0.5


class PeerFailedError(ParallelError):
    """Another rank failed or is gone; the cause is in that rank's own traceback.

    To fix: Read the traceback of the rank that the message names; this rank is not the cause.
    """


class _RankAddress(NamedTuple):
    """Addresses at which a rank accepts connections; the ranks exchange them as JSON."""

    host: str
    address: str
    port: int
    local_path: str
    # Made by each rank. Rank 0's nonce names this job: two jobs with one token must not connect to each other.
    nonce: str


@dataclass(slots=True)
class _Peer:
    rank: int
    label: str
    connection: socket.socket
    # Seals and opens objects, which the receiver unpickles. The step's thread alone uses it.
    authenticated: AuthenticatedConnection
    # The writer thread takes from it; None tells that thread to end.
    outbox: queue.SimpleQueue[list[Any] | None] = field(default_factory=queue.SimpleQueue)
    # The number of messages in the outbox, including the one that the writer is sending. `lock` guards it.
    unsent: int = 0
    # Held by `send` while it sends, so that two callers cannot mix their messages.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, buffers: list[Any]) -> None:
        """Send the part that the connection takes at once, and leave the rest to the writer thread.

        On a host with one core per rank, a woken writer thread would wait until the computation yields the core.
        """
        with self.lock:
            # Bytes may bypass the outbox only while it is empty. Otherwise they would overtake an earlier message, or
            # land in the middle of the one that the writer is sending.
            if not self.unsent:
                buffers = send_available(self.connection, buffers)
            if buffers:
                self.unsent += 1
                self.outbox.put(buffers)


class Transport:
    """Connections of this rank to the other ranks.

        transport.send_tensor(1, plan, Key(step=3, microbatch=0, edge=2), array)
        transport.wait(lambda: transport.has(key), lambda: {1})
        array = transport.take(key, plan)

    `send_tensor` returns at once; the caller must not change the array until it has left. Once a rank is lost, `wait`
    raises `PeerFailedError` with its name. `failure` reports a rank whose connection is open while its process has
    stopped; it returns None as long as there is no such rank.
    """

    def __init__(
        self,
        connections: Mapping[int, tuple[str, AuthenticatedConnection]],
        failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        # Written here only; every thread reads it.
        self._peers: dict[int, _Peer] = {}
        # Guards the members from here to `_goodbyes`. Reader threads add to them; the step's thread takes from them
        # and waits. A single lookup or read of a counter needs no lock, because Python's own lock makes it atomic.
        self._changed = threading.Condition()
        # By key: the plan of the sender, and the array.
        self._tensors: dict[Key, tuple[int, Any]] = {}
        self._objects: dict[int, deque[bytes]] = defaultdict(deque)
        self._receipts: dict[int, int] = defaultdict(int)
        # The number of tensors that have arrived.
        self.arrived = 0
        # The first loss. Later ones are mostly its consequences.
        self._loss: str | None = None
        # The messages of other ranks about a failed step, by step.
        self._failed: dict[int, str] = {}
        # The ranks that have said goodbye.
        self._goodbyes: set[int] = set()
        self._failure = failure
        # Set by the step's thread only. Readers then ignore the end of a connection.
        self._closing = False
        self._writers: list[threading.Thread] = []
        # Daemon threads: a script that ends by an exception must not wait for a peer.
        for rank, (label, connection) in connections.items():
            peer = _Peer(rank, label, connection.socket, connection)
            self._peers[rank] = peer
            self._writers.append(threading.Thread(target=self._write, args=(peer,), daemon=True))
            threading.Thread(target=self._read, args=(peer,), daemon=True).start()
        for writer in self._writers:
            writer.start()

    @property
    def peers(self) -> list[int]:
        return list(self._peers)

    def send_tensor(self, target: int, plan: int, key: Key, array: Any) -> None:
        """Send a tensor; returns at once."""
        self._peers[target].send(parts(Message(Kind.TENSOR, plan, key, array)))

    def unsent(self, target: int) -> int:
        """Return the number of messages to this rank that are left to the writer thread."""
        return self._peers[target].unsent

    def has(self, key: Key) -> bool:
        """Say whether this tensor has arrived."""
        return key in self._tensors

    def take(self, key: Key, plan: int) -> Any:
        """Return a tensor that has arrived; raises `ParallelError` if its sender has another plan than this rank."""
        with self._changed:
            sender_plan, array = self._tensors.pop(key)
        if sender_plan != plan:
            raise ParallelError(
                "the ranks run different steps, or the same one with arguments of other shapes: every rank of a"
                " pipeline calls the same step functions, in the same order, on batches of the same shape"
            )
        return array

    def forget(self, until: int) -> None:
        """Drop the tensors of steps up to this one that were not taken."""
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
        """Wait until `ready` is true.

        `needed` returns the ranks without which `ready` never becomes true; `step` is the current step; `seconds`
        limits the wait. Raises `PeerFailedError` when a rank is lost, when the step failed elsewhere, when a needed
        rank has ended, and at the limit.
        """

        def stuck() -> set[int]:
            # Messages of a rank arrive in order, and a rank that sends an object waits for its receipt.
            return {rank for rank in needed() if step and self._objects[rank]}

        def is_over() -> bool:
            ended = stuck() | (self._goodbyes & needed())
            return bool(ended) or ready() or self._loss is not None or step in self._failed

        with self._changed:
            until = math.inf if seconds is None else time.monotonic() + seconds
            # A process that is stopped keeps its connection open, so no reader wakes this thread. Hence the limit.
            while not self._changed.wait_for(is_over, max(0.0, min(_LOOK_SECONDS, until - time.monotonic()))):
                failure = self._failure()
                if failure is None and time.monotonic() >= until:
                    failure = f"nothing came from {self._peers[min(needed())].label} within {seconds:.0f} s"
                if failure is not None:
                    raise PeerFailedError(failure)
            # Ready first: a value that has arrived counts, even if its sender is gone by now.
            if ready():
                return
            # A reported failure before a loss: the report has the cause.
            if step in self._failed:
                raise PeerFailedError(self._failed[step])
            if self._loss is not None:
                raise PeerFailedError(self._loss)
            if callers := stuck():
                raise ParallelError(
                    f"{self._peers[min(callers)].label} waits in smp.send, broadcast, allgather, barrier or get_weights"
                    " for this rank, which waits for it in a step: every rank calls these, not one of them alone"
                )
            gone = min(self._goodbyes & needed())
            raise PeerFailedError(f"{self._peers[gone].label} has ended, and this rank still waits for it")

    def send_object(self, target: int, data: bytes) -> None:
        """Send bytes, which `receive_object` returns on the other rank."""
        peer = self._peers[target]
        peer.send(parts(Message(Kind.OBJECT, 0, Key(), peer.authenticated.seal(data))))

    def receive_object(self, source: int, seconds: float | None = None) -> bytes:
        """Wait for bytes from a rank, for `seconds` at most, confirm their receipt, and return them.

        Raises `ParallelError` for bytes that the rank did not send.
        """
        self.wait(lambda: bool(self._objects[source]), lambda: {source}, seconds=seconds)
        with self._changed:
            data = self._peers[source].authenticated.open(self._objects[source].popleft())
        self._peers[source].send(parts(Message(Kind.RECEIPT, 0, Key(), b"")))
        return data

    def wait_for_receipt(self, target: int) -> None:
        """Wait until a rank has confirmed one object."""
        self.wait(lambda: self._receipts[target] > 0, lambda: {target})
        with self._changed:
            self._receipts[target] -= 1

    def report_failure(self, step: int, message: str) -> None:
        """Report to all other ranks that this rank failed in a step; they fail in it, too, and may run the next."""
        for peer in self._peers.values():
            peer.send(parts(Message(Kind.FAILED, 0, Key(step), message.encode())))

    def close(self) -> None:
        """Say goodbye to the other ranks, and close the connections."""
        self._closing = True
        for peer in self._peers.values():
            peer.send(parts(Message(Kind.GOODBYE, 0, Key(), b"")))
            peer.outbox.put(None)
        # One limit for all writers together: a peer that reads nothing must not delay the end of the script.
        until = time.monotonic() + _GOODBYE_SECONDS
        for writer in self._writers:
            writer.join(max(0.0, until - time.monotonic()))
        for peer in self._peers.values():
            # `close` alone would not wake the reader, which is blocked in the kernel.
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            peer.connection.close()

    def _write(self, peer: _Peer) -> None:
        """Run a peer's writer thread."""
        while (buffers := peer.outbox.get()) is not None:
            try:
                for buffer in buffers:
                    peer.connection.sendall(buffer)
            except OSError:
                # The reader of the same connection fails, too, and reports the loss.
                return
            # After the last byte, not before: until then `send` must not write to the connection.
            with peer.lock:
                peer.unsent -= 1

    def _read(self, peer: _Peer) -> None:
        """Run a peer's reader thread."""
        try:
            while (message := receive(peer.connection)) is not None:
                with self._changed:
                    self._store(peer, message)
                    self._changed.notify_all()
                # The variable would keep the memory of the last tensor until the next message.
                del message
        except (OSError, ValueError) as error:
            self._mark_lost(peer, f"{peer.label} is lost: {error}")
            return
        self._mark_lost(peer, f"{peer.label} is lost: its connection was closed without a goodbye")

    def _store(self, peer: _Peer, message: Message) -> None:
        """Store a message; requires `_changed`."""
        if message.kind is Kind.TENSOR:
            self._tensors[message.key] = message.plan, message.content
            self.arrived += 1
        elif message.kind is Kind.OBJECT:
            self._objects[peer.rank].append(message.content)
        elif message.kind is Kind.RECEIPT:
            self._receipts[peer.rank] += 1
        elif message.kind is Kind.GOODBYE:
            self._goodbyes.add(peer.rank)
        else:
            self._failed.setdefault(message.key.step, f"{peer.label} failed: {message.content.decode()}")

    def _mark_lost(self, peer: _Peer, message: str) -> None:
        with self._changed:
            if not self._closing and peer.rank not in self._goodbyes and self._loss is None:
                self._loss = message
            self._changed.notify_all()


def connect(engine: Engine, settings: Settings) -> Transport:
    """Connect to all other ranks; each of them must call it. Raises `ParallelError` naming a rank it cannot reach.

    [1] every rank listens, and the engine exchanges the addresses
    [2] a rank connects to all lower ranks, and accepts all higher ranks
    """
    # The acceptor runs `accept` in a thread for each connection; `changed` guards the dict.
    accepted: dict[int, AuthenticatedConnection] = {}
    changed = threading.Condition()

    def accept(connection: AuthenticatedConnection, hello: dict[str, Any]) -> None:
        if hello["meeting"] != nonce:
            raise ParallelError("two jobs with the same token share addresses")
        rank = whole(hello, "rank", settings.rank + 1, settings.size - 1)
        connection.send({})
        with changed:
            accepted[rank] = connection
            changed.notify_all()

    # A short name: the path of a local socket is limited to about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hb-mail-"))
    listener = listen(local_address(settings))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(folder / "s"))
    local.listen(64)
    address, port = listener.getsockname()[:2]
    own_address = _RankAddress(settings.host, address, port, str(folder / "s"), secrets.token_hex(8))
    addresses = [_RankAddress(*json.loads(data)) for data in all_gather(engine, json.dumps(own_address).encode())]
    nonce = addresses[0].nonce
    # The acceptor starts after the exchange, because `accept` reads the nonce. Until then the kernel queues callers.
    acceptor = Acceptor([listener, local], settings.token, f"rank {settings.rank} on {settings.host}", accept)
    until = time.monotonic() + _CONNECT_SECONDS
    connections: dict[int, AuthenticatedConnection] = {}
    try:
        for rank in range(settings.rank):
            peer = addresses[rank]
            target = peer.local_path if peer.host == settings.host else (peer.address, peer.port)
            hello = {"meeting": nonce, "rank": settings.rank}
            connections[rank], _ = connect_to(target, f"rank {rank} on {peer.host}", settings.token, hello, until)
        with changed:
            higher = set(range(settings.rank + 1, settings.size))
            changed.wait_for(lambda: higher <= set(accepted), until - time.monotonic())
            if not higher <= set(accepted):
                absent = min(higher - set(accepted))
                raise ParallelError(
                    f"rank {absent} on {addresses[absent].host} did not connect within {_CONNECT_SECONDS:.0f} s: check"
                    f" that its host can reach {settings.host}"
                )
            connections.update(accepted)
    finally:
        acceptor.close()
        shutil.rmtree(folder, ignore_errors=True)
    for connection in connections.values():
        configure(connection.socket)
    labelled = {rank: (f"rank {rank} on {addresses[rank].host}", connections[rank]) for rank in sorted(connections)}
    return Transport(labelled, lambda: engine.failure)


def configure(connection: socket.socket) -> None:
    """Set the options of a connection: a large buffer for a local one, quick loss detection for TCP."""
    # The handshake set a time limit. A reader of this transport waits for as long as a step computes.
    connection.settimeout(None)
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_BUFFER_BYTES)
        return
    # Without TCP_NODELAY the kernel holds a small message back until the previous one is confirmed.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that loses power sends nothing more. Keepalive finds that on an idle connection, TCP_USER_TIMEOUT while
    # data is unconfirmed.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _SILENCE_MS),
    ):
        # macOS lacks some of them.
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
