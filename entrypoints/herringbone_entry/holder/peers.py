"""The links between the holders of a job: copies go to the neighbour, and files come from whoever has them.

holder that dials                      holder that listens
                 <--- {"challenge"}                                   plain
{"host", "answer", "proof"} --->                                      plain
                 <--- {"proof"}                                       plain; sealed from here on (decision 032)
{"do": "get", save, name} --->         {"bytes"} and that many bytes, in frames
{"do": "put", save, step, name, bytes} --->
                 <--- {"wanted"}; and, if it is, that many bytes, and then {"done"} or {"error"}
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from herringbone_contract.channel.session import MAC_BYTES, SealError, Session, proof, session
from herringbone_contract.files import write_all
from herringbone_contract.memory.link import HolderError, close_file, new_file
from herringbone_entry.channel.unix_socket import listen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from herringbone_entry.holder.store import Store, Wanted

_LENGTH_BYTES = 4
_FRAME_BYTES = 1 << 20
_MESSAGE_BYTES = 1024
_STRANGERS = 16
_HANDSHAKE_SECONDS, _IDLE_SECONDS = 5.0, 30.0
_CONNECT_SECONDS = 2.0
_FULL_SECONDS = 0.1


def job_key(key: bytes) -> bytes:
    """Return the key of a job's holders, which follows from the job's."""
    return hmac.digest(key, b"checkpoints in memory", "sha256")


class _Frames:
    """Frames over a connection, sealed once there is a session. Raises `OSError` and `HolderError`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.session: Session | None = None

    def send(self, body: bytes | memoryview) -> None:
        frame = bytes(body) if self.session is None else self.session.seal(bytes(body))
        self._connection.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)

    def receive(self, limit: int) -> bytes:
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        if length > limit + MAC_BYTES:
            raise HolderError(f"a frame of {length} bytes; {limit} are the limit")
        frame = self._exactly(length)
        try:
            return frame if self.session is None else self.session.open(frame)
        except SealError as error:
            raise HolderError(str(error)) from error

    def say(self, message: Any) -> None:
        self.send(json.dumps(message).encode())

    def object(self) -> dict[str, Any]:
        try:
            message = json.loads(self.receive(_MESSAGE_BYTES))
        except (ValueError, RecursionError) as error:
            raise HolderError(f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise HolderError("not an object")
        return message

    def send_file(self, descriptor: int) -> None:
        size, start = os.fstat(descriptor).st_size, 0
        while start < size:
            # By place: other threads read the same file.
            data = os.pread(descriptor, _FRAME_BYTES, start)
            self.send(data)
            start += len(data)

    def receive_file(self, name: str, size: int) -> int:
        """Return the descriptor of a sealed file with the bytes that come."""
        descriptor = new_file(name)
        try:
            while size > 0:
                data = self.receive(min(size, _FRAME_BYTES))
                if not data or len(data) > size:
                    raise HolderError(f"{len(data)} bytes of {name} at once, and {size} were left")
                write_all(descriptor, data)
                size -= len(data)
            close_file(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _exactly(self, count: int) -> bytes:
        # Grows with what has come, not with what a stranger announces.
        data = bytearray()
        while len(data) < count:
            part = self._connection.recv(min(count - len(data), 1 << 16))
            if not part:
                raise HolderError("the other holder is gone")
            data += part
        return bytes(data)


class Peers:
    """The other holders of the job, by host."""

    def __init__(self, host: str, addresses: Mapping[str, str], key: bytes, store: Store, heard: Callable[[], None]):
        self._host, self._key, self._store, self._heard = host, key, store, heard
        self._addresses = {name: address for name, address in addresses.items() if name != host}
        self._strangers = threading.Semaphore(_STRANGERS)

    def get(self, host: str, save: str, name: str) -> int | None:
        """Return a file that another holder has, None where it has none, or there is no such holder."""
        with suppress(OSError, KeyError), self._dialled(host) as frames:
            frames.say({"do": "get", "save": save, "name": name})
            size = frames.object().get("bytes")
            if type(size) is int and self._store.takes(size):
                return frames.receive_file(name, size)
        return None

    def copy(self, host: str, wanted: Wanted) -> None:
        """Send another holder a save of this host, its manifest last. Raises `OSError`."""
        with self._dialled(host) as frames:
            for name, descriptor in wanted.files.items():
                size = os.fstat(descriptor).st_size
                frames.say({"do": "put", "save": wanted.save, "step": wanted.step, "name": name, "bytes": size})
                answer = frames.object()
                if answer.get("wanted"):
                    frames.send_file(descriptor)
                    answer = frames.object()
                if (reason := answer.get("error")) is not None:
                    raise HolderError(str(reason))

    @contextmanager
    def _dialled(self, host: str) -> Iterator[_Frames]:
        kind, _, place = self._addresses[host].partition(":")
        name, _, port = place.rpartition(":")
        with (
            socket.socket(socket.AF_UNIX)
            if kind == "unix"
            else socket.create_connection((name.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection
        ):
            if kind == "unix":
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(place)
            connection.settimeout(_IDLE_SECONDS)
            frames = _Frames(connection)
            challenge, answer = str(frames.object().get("challenge")), secrets.token_hex(16)
            known = proof(self._key, "holder", self._host, challenge, answer)
            frames.say({"host": self._host, "answer": answer, "proof": known})
            theirs = str(frames.object().get("proof"))
            if not hmac.compare_digest(theirs.encode(), self._first_proof(self._host, answer, challenge).encode()):
                raise HolderError(f"whoever listens in place of the holder of {host} has not the job's key")
            frames.session = session(self._key, self._host, challenge, answer)
            yield frames

    def _first_proof(self, host: str, answer: str, challenge: str) -> str:
        return proof(self._key, "first", host, answer, challenge)

    def serve(self, listener: socket.socket) -> None:
        """Answer other holders, for ever. A stranger costs its own connection, and sixteen at most wait at a time."""
        while True:
            connection = accepted(listener)
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        with closing(connection):
            frames = _Frames(connection)
            try:
                # A timer and not a time-out of each byte, of which a stranger could send one every few seconds.
                limit = threading.Timer(_HANDSHAKE_SECONDS, _cut, (connection,))
                limit.daemon = True
                limit.start()
                try:
                    host = self._greet(frames)
                finally:
                    limit.cancel()
                    self._strangers.release()
                connection.settimeout(_IDLE_SECONDS)
                while True:
                    self._serve_one(frames, host)
            except OSError:
                return

    def _greet(self, frames: _Frames) -> str:
        challenge = secrets.token_hex(16)
        frames.say({"challenge": challenge})
        hello = frames.object()
        host, answer, theirs = (str(hello.get(name)) for name in ("host", "answer", "proof"))
        right = proof(self._key, "holder", host, challenge, answer)
        if host not in self._addresses or not hmac.compare_digest(theirs.encode(), right.encode()):
            raise HolderError("a stranger")
        frames.say({"proof": self._first_proof(host, answer, challenge)})
        frames.session = session(self._key, host, challenge, answer, is_first=True)
        return host

    def _serve_one(self, frames: _Frames, host: str) -> None:
        request = frames.object()
        self._heard()
        if request.get("do") == "get":
            descriptor = self._store.find(request.get("save"), request.get("name"))
            frames.say({} if descriptor is None else {"bytes": os.fstat(descriptor).st_size})
            if descriptor is not None:
                try:
                    frames.send_file(descriptor)
                finally:
                    os.close(descriptor)
        elif request.get("do") == "put":
            self._take(frames, host, request)
        else:
            raise HolderError("no request")

    def _take(self, frames: _Frames, host: str, request: dict[str, Any]) -> None:
        save, step, name, size = (request.get(key) for key in ("save", "step", "name", "bytes"))
        if type(size) is not int or not self._store.takes(size):
            frames.say({"error": f"{size} bytes are more than fit"})
        elif self._store.has(host, str(save), str(name), size):
            frames.say({})
        else:
            frames.say({"wanted": True})
            try:
                self._store.put(host, save, step, name, frames.receive_file("copy", size))
                frames.say({"done": True})
            except HolderError as error:
                frames.say({"error": str(error)})


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def accepted(listener: socket.socket) -> socket.socket:
    """Return the next connection; a process without free descriptors waits for some."""
    while True:
        try:
            return listener.accept()[0]
        except OSError:
            time.sleep(_FULL_SECONDS)


def listening(address: str) -> socket.socket:
    """Return the socket at which other holders are heard. Raises `OSError`."""
    kind, _, place = address.partition(":")
    if kind == "unix":
        listener = listen(place, _STRANGERS)
        listener.setblocking(True)
        return listener
    return socket.create_server(("", int(place.rpartition(":")[2])), backlog=_STRANGERS)
