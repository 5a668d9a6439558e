"""The container engine's API, spoken over plain sockets: one request, one connection.

docker-py takes 0.1 s of processor time to import, a third of the whole way to a script's first line, and gives no
stream that another process could go on with. See docs/decisions/010-engine-over-plain-sockets.md.
"""

from __future__ import annotations

import contextlib
import json
import socket

from herringbone_contract.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_UNIX, _TCP, _SSH = "unix://", "tcp://", "ssh://"
_DEFAULT_PORT = 2375
_CONNECT_SECONDS = 10.0
# A start may wait for a busy disk; an engine that says nothing for so long will not say anything any more.
ANSWER_SECONDS = 120.0
_PIECE_BYTES = 1 << 16
_IMAGE_PIECE_BYTES = 1 << 20
_MAX_HEAD_BYTES = 1 << 16


class EngineRefusal(EngineError):
    """The engine answered, and said no: `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """One engine.

    >>> Engine("unix:///var/run/docker.sock").get("/version")["Version"]       # doctest: +SKIP
    '20.10.24'

    Requests name no version of the API: the engine answers in its newest. Raises `EngineRefusal` for what the engine
    refuses, `EngineError` when it does not answer.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def is_here(self) -> bool:
        """Whether the engine sees this machine's files, so that they can be mounted."""
        return self.address.startswith(_UNIX)

    def get(self, path: str, **query: object) -> Any:
        return self.ask("GET", path, query)

    def post(self, path: str, body: object = None, **query: object) -> Any:
        return self.ask("POST", path, query, body)

    def delete(self, path: str, **query: object) -> None:
        self.ask("DELETE", path, query)

    def ask(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """Send a request and return the answer's JSON, None where there is none."""
        with self.open() as connection:
            try:
                send(connection, method, path, query, body)
                return answer(connection, f"{method} {path}")
            except OSError as error:
                raise self.silent(error) from error

    def open(self) -> socket.socket:
        """Return a new connection."""
        try:
            connection = self._connect()
        except OSError as error:
            raise self.silent(error) from error
        connection.settimeout(ANSWER_SECONDS)
        return connection

    def upload(self, container: str, folder: str, fill: Callable[[Callable[[bytes], None]], None]) -> None:
        """Unpack a tar into a folder of a container; `fill` calls its argument with each piece of the tar."""
        with Upload(self, "PUT", f"/containers/{container}/archive", {"path": folder}) as upload:
            with contextlib.suppress(BrokenPipeError):  # it has refused already; the answer says why
                fill(upload.feed)
            upload.finish()

    def save(self, image: str) -> Iterator[bytes]:
        """Yield an image, as one tar, piece by piece: what `docker save` writes."""
        path = f"/images/{image}/get"
        with self.open() as connection:
            try:
                send(connection, "GET", path)
                if not 200 <= (status := read_head(connection)) < 300:
                    raise _refusal(status, connection, f"GET {path}")
                with connection.makefile("rb", buffering=0) as stream:
                    while piece := stream.read(_IMAGE_PIECE_BYTES):
                        yield piece
            except OSError as error:
                raise self.silent(error) from error

    @contextlib.contextmanager
    def download(self, container: str, path: str) -> Any:
        """Give a path of a container, as a tar to read from; `EngineRefusal` with status 404 when it is not there."""
        with self.open() as connection:
            send(connection, "GET", f"/containers/{container}/archive", {"path": path})
            if not 200 <= (status := read_head(connection)) < 300:
                raise _refusal(status, connection, f"GET {path}")
            with connection.makefile("rb", buffering=_PIECE_BYTES) as stream:
                yield stream

    def _connect(self) -> socket.socket:
        if self.address.startswith(_UNIX):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_CONNECT_SECONDS)
            try:
                connection.connect(self.address[len(_UNIX) :])
            except OSError:
                connection.close()
                raise
            return connection
        if self.address.startswith(_TCP):
            host, _, port = self.address[len(_TCP) :].rstrip("/").rpartition(":")
            place = (host.strip("[]"), int(port)) if host else (port, _DEFAULT_PORT)
            return socket.create_connection(place, timeout=_CONNECT_SECONDS)
        return _through_ssh(self.address)

    def silent(self, error: OSError) -> EngineError:
        """Return what to raise where the engine does not answer."""
        return EngineError(
            f"the container engine at {self.address} does not answer: {error.strerror or error}; is it running, and "
            "may you use it (`docker version`)?"
        )


class Upload:
    """A request whose content is sent piece by piece, by who has it bit by bit.

    >>> with Upload(engine, "POST", "/images/load", {}) as upload:              # doctest: +SKIP
    ...     for piece in pieces: upload.feed(piece)
    ...     upload.finish()

    Raises what `Engine` raises; once the engine has refused, `feed` raises `BrokenPipeError` and `finish` says why.
    """

    def __init__(self, engine: Engine, method: str, path: str, query: Mapping[str, object]) -> None:
        self._engine, self._what = engine, f"{method} {path}"
        self._connection = engine.open()
        head = _head(method, path, query, "1.1")
        try:
            self._connection.sendall(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        except OSError as error:
            self._connection.close()
            raise engine.silent(error) from error

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def feed(self, piece: bytes) -> None:
        try:
            if piece:
                self._connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._engine.silent(error) from error

    def finish(self) -> str:
        """End the content; return what the engine says to it."""
        try:
            with contextlib.suppress(BrokenPipeError):
                self._connection.sendall(b"0\r\n\r\n")
            status = read_head(self._connection)
            if not 200 <= status < 300:
                raise _refusal(status, self._connection, self._what)
            return _rest(self._connection).decode("utf-8", "replace")
        except OSError as error:
            raise self._engine.silent(error) from error
        finally:
            self._connection.close()


def _through_ssh(address: str) -> socket.socket:
    """Let OpenSSH, with the user's own settings and keys, carry the bytes to the engine's socket over there."""
    import subprocess

    ours, theirs = socket.socketpair()
    command = ["ssh", "-o", "BatchMode=yes", "--", address, "docker", "system", "dial-stdio"]
    with theirs:
        # A shell starts it and is gone: it ends with its connection, which another process may go on with, and is
        # nobody's child to wait for. (A shell gives what it starts behind itself no standard input but by name.)
        start = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh", *command]
        subprocess.run(start, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True, check=True)
    return ours


def send(
    connection: socket.socket, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
) -> None:
    """Send a request. As HTTP/1.0, so that the answer ends where the connection does, and is in one piece."""
    content = b"" if body is None else json.dumps(body).encode()
    fields = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall((_head(method, path, query or {}, "1.0") + fields).encode() + content)


def hijack(connection: socket.socket, path: str, query: Mapping[str, object]) -> None:
    """Send a request after which the connection is a plain stream, both ways, until one side closes it."""
    head = _head("POST", path, query, "1.1")
    connection.sendall(f"{head}Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode())
    status = read_head(connection)
    if status != 101:
        raise _refusal(status, connection, f"POST {path}")


def answer(connection: socket.socket, what: str) -> Any:
    """Read an answer to its end; return its JSON, None where there is none. Raises `EngineRefusal` or `OSError`."""
    status = read_head(connection)
    if not 200 <= status < 300:
        raise _refusal(status, connection, what)
    content = _rest(connection)
    return json.loads(content) if content.strip() else None


def read_head(connection: socket.socket) -> int:
    """Read an answer's status and headers, and not a byte of what follows. Raises `ConnectionError`."""
    head = b""
    # Byte by byte: what follows may be a stream that another process goes on reading.
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > _MAX_HEAD_BYTES:
            raise ConnectionError("it closed the connection without an answer")
        head += byte
    return int(head.split(None, 2)[1])


def _head(method: str, path: str, query: Mapping[str, object], version: str) -> str:
    from urllib.parse import urlencode

    given = {name: _text(value) for name, value in query.items() if value is not None}
    return f"{method} {path}{'?' * bool(given)}{urlencode(given)} HTTP/{version}\r\nHost: engine\r\n"


def _text(value: object) -> str:
    """Write a query's value as the API does: 1 and 0 for truth, JSON for what has parts."""
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def _rest(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(_PIECE_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


def _refusal(status: int, connection: socket.socket, what: str) -> EngineRefusal:
    content = _rest(connection)
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode("utf-8", "replace").strip()
    return EngineRefusal(status, f"the container engine refuses {what}: {message or status}")
