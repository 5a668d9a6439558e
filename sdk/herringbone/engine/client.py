"""The client of the container engine's API, over plain sockets, with one connection per request.

A controller inherits open connections and continues to read from them, so no library may buffer their bytes. docker-py
does, and takes 0.1 s of processor time to import. See docs/decisions/030-one-engine-client.md, and 010.
"""

from __future__ import annotations

import contextlib
import json
import socket

from herringbone_contract.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO, Any

_UNIX, _TCP = "unix://", "tcp://"
_DEFAULT_PORT = 2375
# Without a limit, connecting to a machine that is off takes minutes.
_CONNECT_SECONDS = 10.0
# A start may wait for a busy disk. An engine that stays silent for this long is taken for dead.
ANSWER_SECONDS = 120.0
_PIECE_BYTES = 1 << 16
_IMAGE_PIECE_BYTES = 1 << 20
# A server that is no engine may send a head without an end.
_MAX_HEAD_BYTES = 1 << 16


class EngineRefusal(EngineError):
    """The engine answered with an error; `status` is the HTTP status.

    To fix: Act on the engine's own words in the message; the engine's log may say more.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """One engine. `tls` is for an engine behind TLS.

    >>> Engine("unix:///var/run/docker.sock").get("/version")["Version"]       # doctest: +SKIP
    '20.10.24'

    Requests name no version of the API, so the engine uses its newest one. Raises `EngineRefusal` when the engine
    answers with an error, `EngineError` when it does not answer.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._tls = tls

    @property
    def is_local(self) -> bool:
        """True if the engine runs on this machine, so that containers can mount its files."""
        return self.address.startswith(_UNIX)

    def get(self, path: str, **query: object) -> Any:
        return self.request("GET", path, query)

    def post(self, path: str, body: object = None, **query: object) -> Any:
        return self.request("POST", path, query, body)

    def delete(self, path: str, **query: object) -> None:
        self.request("DELETE", path, query)

    def request(self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        """Send a request and return the answer's JSON, None for an empty answer."""
        with self.open() as connection:
            try:
                send(connection, method, path, query, body)
                return answer(connection, f"{method} {path}")
            except OSError as error:
                raise self.no_answer(error) from error

    def open(self) -> socket.socket:
        """Return a new connection. Reads and writes on it time out after `ANSWER_SECONDS`."""
        try:
            connection = self._connect()
        except OSError as error:
            raise self.no_answer(error) from error
        connection.settimeout(ANSWER_SECONDS)
        return connection

    def upload(self, container: str, folder: str, fill: Callable[[Callable[[bytes], None]], None]) -> None:
        """Unpack a tar in a folder of a container; `fill` calls its argument with each piece of the tar."""
        with Upload(self, "PUT", f"/containers/{container}/archive", {"path": folder}) as upload:
            with contextlib.suppress(BrokenPipeError):  # the engine has refused already; its answer holds the reason
                fill(upload.feed)
            upload.finish()

    def save(self, image: str) -> Iterator[bytes]:
        """Yield an image piece by piece, as the tar that `docker save` writes."""
        path = f"/images/{image}/get"
        with self.open() as connection:
            try:
                send(connection, "GET", path)
                if not 200 <= (status := read_head(connection)) < 300:
                    raise _refusal(status, _rest(connection), f"GET {path}")
                # Without a buffer, a read returns what has arrived and does not wait for a full piece.
                with connection.makefile("rb", buffering=0) as stream:
                    while piece := stream.read(_IMAGE_PIECE_BYTES):
                        yield piece
            except OSError as error:
                raise self.no_answer(error) from error

    @contextlib.contextmanager
    def download(self, container: str, path: str) -> Any:
        """Open a path of a container as a tar to read; `EngineRefusal` with status 404 when it does not exist."""
        with self.open() as connection:
            send(connection, "GET", f"/containers/{container}/archive", {"path": path})
            if not 200 <= (status := read_head(connection)) < 300:
                raise _refusal(status, _rest(connection), f"GET {path}")
            with connection.makefile("rb", buffering=_PIECE_BYTES) as stream:
                yield stream

    def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        content: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Send a request and yield the JSON objects of its answer as the engine writes them.

        >>> for step in engine.stream("POST", "/images/create", {"fromImage": "debian", "tag": "12"}):  # doctest: +SKIP
        ...     print(step.get("status"))

        `content` is a file, which is sent from its start. A build may print nothing for minutes, so there is no time
        limit between two objects. Raises `EngineError` for an answer that ends early.
        """
        from http.client import HTTPException, HTTPResponse

        request = f"{method} {path}"
        with self.open() as connection:
            try:
                send_file(connection, request, query or {}, content, headers or {})
                connection.settimeout(None)
                response = HTTPResponse(connection, method=method)
                response.begin()
                if not 200 <= response.status < 300:
                    raise _refusal(response.status, response.read(), request)
                line = b""
                # Not `readline`, which takes an answer that breaks off for one that ends.
                while piece := response.read1(_PIECE_BYTES):
                    *lines, line = (line + piece).split(b"\n")
                    yield from (json.loads(text) for text in lines if text.strip())
                if line.strip():
                    yield json.loads(line)
            except HTTPException as error:
                raise EngineError(
                    f"the container engine at {self.address} broke off its answer to {request}"
                ) from error
            except OSError as error:
                raise self.no_answer(error) from error

    def logs(self, container: str, *, follow: bool = False) -> Iterator[bytes]:
        """Yield a container's output, stdout and stderr in their order; with `follow`, until the container ends."""
        path = f"/containers/{container}/logs"
        with self.open() as connection:
            try:
                send(connection, "GET", path, {"stdout": True, "stderr": True, "follow": follow})
                connection.settimeout(None)
                if not 200 <= (status := read_head(connection)) < 300:
                    raise _refusal(status, _rest(connection), f"GET {path}")
                # Buffering is harmless here: no other process inherits this connection.
                with connection.makefile("rb") as frames:
                    # Each frame has a head of 8 bytes: the stream's number, three zeros, the length.
                    while head := frames.read(8):
                        yield frames.read(int.from_bytes(head[4:], "big"))
            except OSError as error:
                raise self.no_answer(error) from error

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
            # The last colon ends the host, because an IPv6 address in brackets has colons of its own. Without any
            # colon, rpartition leaves the host's name in `port`.
            host, _, port = self.address[len(_TCP) :].rstrip("/").rpartition(":")
            if host and not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 1 << 16):
                raise EngineError(f"the container engine at {self.address}: {port!r} is no port; write tcp://HOST:PORT")
            name, number = (host.strip("[]"), int(port)) if host else (port, _DEFAULT_PORT)
            connection = socket.create_connection((name, number), timeout=_CONNECT_SECONDS)
            return connection if self._tls is None else self._tls.wrap_socket(connection, server_hostname=name)
        return _through_ssh(self.address)

    def no_answer(self, error: OSError) -> EngineError:
        """Return the error to raise when the engine does not answer."""
        return EngineError(
            f"the container engine at {self.address} does not answer: {error.strerror or error}; is it running, and "
            "may you use it (`docker version`)?"
        )


class Upload:
    """A request whose content is sent piece by piece, for a content of unknown length.

    >>> with Upload(engine, "POST", "/images/load", {}) as upload:              # doctest: +SKIP
    ...     for piece in pieces: upload.feed(piece)
    ...     upload.finish()

    Raises the errors of `Engine`. Once the engine has refused, `feed` raises `BrokenPipeError`, `finish` the refusal.
    """

    def __init__(self, engine: Engine, method: str, path: str, query: Mapping[str, object]) -> None:
        self._engine, self._request = engine, f"{method} {path}"
        # The length of the content is unknown, and only HTTP/1.1 has chunks.
        # `Connection: close`, because `_rest` reads the answer to the end of the connection.
        head = _head(method, path, query, "1.1")
        self._connection = engine.open()
        try:
            self._connection.sendall(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        except OSError as error:
            # `__exit__` does not run when the constructor fails.
            self._connection.close()
            raise engine.no_answer(error) from error

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def feed(self, piece: bytes) -> None:
        try:
            # An empty chunk would end the content.
            if piece:
                self._connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        # The engine has closed its side. The caller goes on to `finish`, which reads the engine's reason.
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._engine.no_answer(error) from error

    def finish(self) -> str:
        """End the content and return the text of the engine's answer."""
        try:
            with contextlib.suppress(BrokenPipeError):
                self._connection.sendall(b"0\r\n\r\n")
            status = read_head(self._connection)
            if not 200 <= status < 300:
                raise _refusal(status, _rest(self._connection), self._request)
            return _rest(self._connection).decode("utf-8", "replace")
        except OSError as error:
            raise self._engine.no_answer(error) from error
        finally:
            self._connection.close()


def _through_ssh(address: str) -> socket.socket:
    """Connect to the engine of another machine through OpenSSH, with the user's own settings and keys."""
    import subprocess

    from herringbone.system.remote_line import PLAIN_SSH

    ours, theirs = socket.socketpair()
    # BatchMode: ssh must fail rather than ask for a password, because the user may not see its question.
    command = ["ssh", "-o", "BatchMode=yes", *PLAIN_SSH, "--", address, "docker", "system", "dial-stdio"]
    with theirs:
        # A shell starts ssh and exits: ssh is no child to wait for, and ends with its connection, which others inherit.
        # Its background commands read /dev/null unless standard input is redirected, hence descriptor 3.
        start = ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "sh", *command]
        subprocess.run(start, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True, check=True)
    return ours


def send(
    connection: socket.socket, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
) -> None:
    """Send a request. HTTP/1.0 makes the answer end with the connection and forbids chunked encoding."""
    content = b"" if body is None else json.dumps(body).encode()
    fields = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall((_head(method, path, query or {}, "1.0") + fields).encode() + content)


def send_file(
    connection: socket.socket,
    request: str,
    query: Mapping[str, object],
    content: IO[bytes] | None,
    headers: Mapping[str, str],
) -> None:
    """Send a request, such as "POST /build", with a file as its content.

    The request is HTTP/1.1. After an HTTP/1.0 request the engine would close the connection without reading the padding
    at the end of a tar, and the kernel would then report a reset connection to us.
    """
    size = 0
    if content is not None:
        size = content.seek(0, 2)
        content.seek(0)
    fields = {"Content-Type": "application/x-tar", "Content-Length": str(size), **headers}
    lines = _fields(fields)
    method, _, path = request.partition(" ")
    connection.sendall(f"{_head(method, path, query, '1.1')}{lines}\r\n".encode())
    # An engine that refuses early closes the connection; its answer, which the caller reads, holds the reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while content is not None and (piece := content.read(_IMAGE_PIECE_BYTES)):
            connection.sendall(piece)


def hijack(connection: socket.socket, path: str, query: Mapping[str, object], body: object = None) -> None:
    """Send a request after which the connection is a plain stream, both ways, until one side closes it."""
    head = _head("POST", path, query, "1.1")
    content = b"" if body is None else json.dumps(body).encode()
    fields = {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Length": str(len(content))}
    if content:
        fields["Content-Type"] = "application/json"
    connection.sendall(f"{head}{_fields(fields)}\r\n".encode() + content)
    status = read_head(connection)
    # 101 is Switching Protocols: from here on both directions carry raw bytes.
    if status != 101:
        raise _refusal(status, _rest(connection), f"POST {path}")


def answer(connection: socket.socket, request: str) -> Any:
    """Read an answer to its end and return its JSON, None if it is empty. Raises `EngineRefusal` or `OSError`."""
    status = read_head(connection)
    if not 200 <= status < 300:
        raise _refusal(status, _rest(connection), request)
    content = _rest(connection)
    return json.loads(content) if content.strip() else None


def read_head(connection: socket.socket) -> int:
    """Read an answer's head, and no byte of its content, and return the status. Raises `ConnectionError`."""
    return int(whole_head(connection).split(None, 2)[1])


def whole_head(connection: socket.socket) -> bytes:
    head = b""
    # Read byte by byte: another process may inherit the connection and read the content.
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > _MAX_HEAD_BYTES:
            raise ConnectionError("it closed the connection without an answer")
        head += byte
    return head


def _head(method: str, path: str, query: Mapping[str, object], version: str) -> str:
    """Return the request line and the first header; the one place where values become part of a request's address.

    Raises `EngineError` for a path with the parts `.` or `..`, which the engine would resolve to another object.
    """
    from urllib.parse import quote, urlencode

    if any(part in (".", "..") for part in path.split("/")):
        raise EngineError(f"the container engine has no object {path!r}: a name in it leads to another one")
    parameters = {name: _text(value) for name, value in query.items() if value is not None}
    # Everything else that ends a request line, a path or a query becomes %XX. Images have / : @ in their names.
    target = quote(path, safe="/:@", errors="surrogatepass")
    ending = f"?{urlencode(parameters, errors='surrogatepass')}" if parameters else ""
    return f"{method} {target}{ending} HTTP/{version}\r\nHost: engine\r\n"


def _fields(fields: Mapping[str, str]) -> str:
    """Return header lines. Raises `EngineError` for a value that would begin a line of its own."""
    for name, value in fields.items():
        if not (name + value).isprintable():
            raise EngineError(f"the header {name} of a request to the container engine has a control character")
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items())


def _text(value: object) -> str:
    """Return a query's value as the API takes it: 1 and 0 for booleans, JSON for dicts and lists."""
    if isinstance(value, bool):
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def _rest(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(_PIECE_BYTES):
        pieces.append(piece)
    return b"".join(pieces)


def _refusal(status: int, content: bytes, request: str) -> EngineRefusal:
    # An engine sends {"message": ...}; a proxy in front of it may send any text.
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode("utf-8", "replace").strip()
    return EngineRefusal(status, f"the container engine refuses {request}: {message or status}")
