"""A program in a container, over a websocket to the API server: bytes in, bytes out, and its exit code.

    frame of the websocket    1 byte of channel, then bytes
    channel                   0 input, 1 output, 2 errors, 3 the end as a Status in JSON, 4 the terminal's size in JSON

Servers before 1.30 have no frame for the end of the input. So the input of a program without a terminal comes in frames
of its own, which `herringbone_entry.framed_input` takes apart in the container.
"""

from __future__ import annotations

import contextlib
import json
import select
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from socket import SHUT_RDWR
from typing import Any

from herringbone.system.attached import STDERR, STDOUT
from herringbone_contract.errors import KubernetesError

# The time limit of short commands, and for connecting.
SECONDS = 30.0
SHOWN_CHARS = 1_000
# The library is imported late.
_TIMEOUT = "WebSocketTimeoutException"
_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STATUS, _RESIZE = 0, 3, 4
# Servers take what they read at once, 32 KiB.
_BYTES = 32 << 10
_SIZE = struct.Struct(">I")
_FRAMED = "herringbone_entry.framed_input"


class Execution:
    """One program in a container, a `system.attached.Program`. Raises `KubernetesError`.

    `seconds` is the longest time without a byte. `framed`: the input comes in frames, and can be ended.
    """

    def __init__(self, socket: Any, what: str, seconds: float | None, *, framed: bool) -> None:
        self._socket, self._what, self._framed = socket, what, framed
        self._status, self._seconds = b"", seconds
        socket.settimeout(seconds)

    def read(self) -> tuple[int, bytes] | None:
        """Return the next bytes with their channel, STDOUT or STDERR; None at the end of the program."""
        from websocket import ABNF, WebSocketException

        while True:
            try:
                code, frame = self._socket.recv_data_frame()
            except (WebSocketException, OSError, ValueError) as error:
                # Some servers close the connection after the status, and not the websocket.
                if self._status:
                    return None
                raise self._cut(error) from error
            if code == ABNF.OPCODE_CLOSE:
                return None
            # The first frames are empty.
            channel, data = (frame.data[0] if frame.data else 0), bytes(frame.data[1:])
            if channel == _STATUS:
                self._status += data
            elif channel in (STDOUT, STDERR) and data:
                return channel, data

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the program's output until its end."""
        while (piece := self.read()) is not None:
            yield piece

    def read_all(self, seconds: float) -> bytes:
        """Return the whole output, of both channels; the program may run for this time."""
        deadline, output = time.monotonic() + seconds, bytearray()
        for _, data in self.pieces():
            output += data
            if time.monotonic() >= deadline:
                raise self._cut(f"no end within {seconds:g} s")
        # What could not be run has no exit code.
        _ = self.exit_code
        return bytes(output)

    @property
    def exit_code(self) -> int:
        """The exit code, after the end of the output. Raises `KubernetesError` for a program that could not run."""
        try:
            status = json.loads(self._status)
            if status["status"] == "Success":
                return 0
            causes = status.get("details", {}).get("causes", ())
            return next(int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode")
        except StopIteration:
            raise self._cut(status.get("message", status)) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._cut("the connection ended before the program did") from None

    def write(self, data: bytes) -> None:
        """Send input."""
        for start in range(0, len(data), _BYTES):
            piece = data[start : start + _BYTES]
            self._send(_STDIN, (_SIZE.pack(len(piece)) if self._framed else b"") + piece)

    def end_input(self) -> None:
        """Have the program read the end of its input, where it has no terminal."""
        if self._framed:
            self._send(_STDIN, _SIZE.pack(0))

    def resize(self, columns: int, lines: int) -> None:
        self._send(_RESIZE, json.dumps({"Width": columns, "Height": lines}).encode())

    def close(self) -> None:
        # Not the library's `close`, which would wait for the server's answer.
        if (connection := self._socket.sock) is not None:
            with contextlib.suppress(OSError):
                # A thread that reads wakes up.
                connection.shutdown(SHUT_RDWR)
            connection.close()

    def _send(self, channel: int, data: bytes) -> None:
        from websocket import WebSocketException

        try:
            self._socket.send_binary(bytes((channel,)) + data)
        except (WebSocketException, OSError, ValueError) as error:
            raise self._cut(error) from error

    def _cut(self, why: object) -> KubernetesError:
        words = f"nothing within {self._seconds:g} s" if type(why).__name__ == _TIMEOUT else str(why)[:SHOWN_CHARS]
        return KubernetesError(f"{self._what}: {words}")


class Shared:
    """A socket that one thread reads while another one writes: a TLS connection is not safe for both at once."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._lock = socket, threading.Lock()
        self._seconds: float | None = None
        socket.setblocking(False)

    def gettimeout(self) -> float | None:
        return self._seconds

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def recv(self, size: int) -> bytes:
        return bytes(self._when_ready(select.POLLIN, self._socket.recv, size))

    def send(self, data: bytes) -> int:
        return int(self._when_ready(select.POLLOUT, self._socket.send, data))

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def _when_ready(self, event: int, call: Callable[[Any], Any], argument: object) -> Any:
        while True:
            try:
                with self._lock:
                    return call(argument)
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            except BlockingIOError:
                wanted = event
            poll = select.poll()
            poll.register(self._socket, wanted)
            if not poll.poll(None if self._seconds is None else self._seconds * 1_000):
                raise TimeoutError


def open_socket(configuration: Any, url: str, headers: dict[str, str], what: str) -> Any:
    """Connect to a program, with the certificates and the proxy of the official client's configuration."""
    from websocket import WebSocket, WebSocketBadStatusException, WebSocketException

    # Not the client's own function, which waits for ever for a server that does not answer.
    options: dict[str, Any] = {"header": [f"{name}: {value}" for name, value in headers.items()], "timeout": SECONDS}
    if configuration.proxy or configuration.proxy_headers:
        from kubernetes.stream import ws_client

        proxies: Any = ws_client.websocket_proxycare
        options = proxies(options, configuration, url, headers)
    connection: Any = WebSocket(sslopt=_tls_options(configuration))
    try:
        connection.connect(url, **options, subprotocols=[_PROTOCOL])
    except WebSocketBadStatusException as error:
        words = server_words(error.resp_body or b"") or str(error)
        raise KubernetesError(f"{what} cannot run there: {words}", status=error.status_code) from error
    except (WebSocketException, OSError) as error:
        connection.shutdown()
        raise KubernetesError(f"{what} cannot run there: {str(error)[:SHOWN_CHARS]}") from error
    connection.sock = Shared(connection.sock)
    return connection


def _tls_options(configuration: Any) -> dict[str, Any]:
    """Return the official client's settings in the words of the library for websockets."""
    options = {
        "cert_reqs": ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE,
        "ca_certs": configuration.ssl_ca_cert,
        "check_hostname": configuration.assert_hostname if configuration.verify_ssl else False,
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return {name: value for name, value in options.items() if value is not None}


def server_words(answer: bytes) -> str:
    """Return the server's own words about a refused request."""
    try:
        return str(json.loads(answer)["message"])[:SHOWN_CHARS]
    except (ValueError, TypeError, KeyError):
        return answer[:SHOWN_CHARS].decode("utf-8", "replace")


def framed_words(command: Sequence[str]) -> list[str]:
    """Return the words that run a command whose input comes in frames.

    >>> framed_words(["tar", "-x"])
    ['python3', '-m', 'herringbone_entry.framed_input', 'tar', '-x']
    """
    return ["python3", "-m", _FRAMED, *command]
