"""Programs in containers: bytes, exit codes and time limits, by frames as literals and in a real pod."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from websocket import ABNF, WebSocketConnectionClosedException, WebSocketTimeoutException

from herringbone.backends.kubernetes.api import Cluster as Api
from herringbone.backends.kubernetes.execution import STDERR, STDOUT, Execution, Shared
from herringbone_contract.errors import KubernetesError
from herringbone_entry.framed_input import copy_frames
from tests.kubernetes.images import SMALL

SUCCESS = b'\x03{"status":"Success"}'
EVERY_BYTE = bytes(range(256))


class Socket:
    """Plays frames; an exception among them is raised."""

    def __init__(self, *frames: bytes | Exception) -> None:
        self.frames, self.sent = list(frames), b""
        self.sock = None

    def settimeout(self, seconds: float | None) -> None:
        pass

    def recv_data_frame(self) -> tuple[int, object]:
        if not self.frames:
            return ABNF.OPCODE_CLOSE, SimpleNamespace(data=b"\x03\xe8")
        frame = self.frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return ABNF.OPCODE_BINARY, SimpleNamespace(data=frame)

    def send_binary(self, frame: bytes) -> None:
        self.sent += frame


def execution(*frames: bytes | Exception, framed: bool = False) -> Execution:
    return Execution(Socket(*frames), "pod a: cat", 5, framed=framed)


def failed(reason: str, message: str, **more: object) -> bytes:
    status = {"status": "Failure", "message": "words", "details": {"causes": [{"reason": reason, "message": message}]}}
    return b"\x03" + json.dumps({**status, **more}).encode()


def test_output_comes_as_bytes_with_its_channel() -> None:
    stream = execution(b"\x01", b"\x02", b"\x01" + EVERY_BYTE, b"\x02no", SUCCESS)
    assert list(stream.pieces()) == [(STDOUT, EVERY_BYTE), (STDERR, b"no")]
    assert stream.exit_code == 0


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ((failed("ExitCode", "3"),), 3),
        ((SUCCESS, WebSocketConnectionClosedException("gone")), 0),
        # A long Status may come in pieces.
        ((SUCCESS[:5], b"\x03" + SUCCESS[5:]), 0),
    ],
)
def test_the_exit_code(frames, code) -> None:
    stream = execution(*frames)
    assert (list(stream.pieces()), stream.exit_code) == ([], code)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ((b"\x01ab",), "pod a: cat: the connection ended before the program did"),
        ((b"\x01ab", WebSocketConnectionClosedException("gone")), "pod a: cat: gone"),
        ((WebSocketTimeoutException("timed out"),), "pod a: cat: nothing within 5 s"),
        ((failed("Other", "3"),), "pod a: cat: words"),
        ((b'\x03{"status":"Failure","message":"no such container"}',), "pod a: cat: no such container"),
        ((b'\x03["status"]',), "pod a: cat: the connection ended before the program did"),
    ],
)
def test_a_program_without_an_end_is_an_error(frames, why) -> None:
    with pytest.raises(KubernetesError, match=why):
        execution(*frames).read_all(5)


def test_a_program_that_never_stops_talking_has_a_limit() -> None:
    with pytest.raises(KubernetesError, match="no end within 0 s"):
        execution(b"\x01ab", b"\x01ab").read_all(0)


def test_framed_input_has_an_end() -> None:
    stream = execution(framed=True)
    stream.write(EVERY_BYTE * 200)
    stream.end_input()
    frames = stream._socket.sent
    assert frames[:5] == b"\x00" + struct.pack(">I", 32 << 10)
    assert frames[-5:] == b"\x00" + struct.pack(">I", 0)
    content, target = frames[1 : 5 + (32 << 10)] + frames[6 + (32 << 10) :][:-5] + frames[-4:], io.BytesIO()
    assert copy_frames(io.BytesIO(content), target)
    assert target.getvalue() == EVERY_BYTE * 200


def test_input_of_a_terminal_comes_as_it_is() -> None:
    stream = execution()
    stream.write(b"ls\n")
    stream.resize(80, 24)
    stream.end_input()
    assert stream._socket.sent == b'\x00ls\n\x04{"Width": 80, "Height": 24}'


class Connection:
    """Stands in for a TLS connection. `recv` tries whether another thread can send meanwhile."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.fileno, self.setblocking, self.send = self.near.fileno, self.near.setblocking, self.near.send
        self.shared, self.overlapped = Shared(self), False
        self.sender = threading.Thread(target=self.shared.send, args=(b"a",))

    def recv(self, size: int) -> bytes:
        if self.sender.ident is None:
            self.sender.start()
            self.sender.join(0.05)
            self.overlapped = not self.sender.is_alive()
        try:
            return self.near.recv(size)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.near.close()
        self.far.close()


def test_two_threads_do_not_use_a_connection_at_once_and_do_not_wait_for_each_other() -> None:
    with Connection() as connection:
        reader = threading.Thread(target=connection.shared.recv, args=(10,))
        reader.start()
        # The sender's byte comes while the reader waits.
        assert connection.far.recv(1) == b"a"
        connection.far.sendall(b"answer")
        reader.join(30)
        connection.sender.join(30)
        assert not connection.overlapped


def test_a_connection_has_a_time_limit() -> None:
    near, far = socket.socketpair()
    with near, far:
        shared = Shared(near)
        shared.settimeout(0.01)
        with pytest.raises(TimeoutError):
            shared.recv(1)


def framed(content: bytes, *command: str) -> subprocess.CompletedProcess[bytes]:
    words = (sys.executable, "-m", "herringbone_entry.framed_input", *command)
    return subprocess.run(words, input=content, capture_output=True, timeout=30)


def test_a_command_whose_client_goes_away_is_terminated() -> None:
    whole = struct.pack(">I", 2) + b"ab" + struct.pack(">I", 0)
    assert framed(whole, "cat").stdout == b"ab"
    # No part of a frame, and no end that looks like the whole.
    for cut in (6, 5, 2):
        ended = framed(whole[:cut], "sh", "-c", "cat; echo whole; sleep 20")
        assert (ended.returncode, b"whole" in ended.stdout) == (128 + 15, False)


def test_a_command_that_reads_nothing_is_no_trouble() -> None:
    content = (struct.pack(">I", 1 << 20) + b"a" * (1 << 20)) * 2 + struct.pack(">I", 0)
    assert framed(content, "sh", "-c", "exit 3").returncode == 3
    assert framed(content, "/nowhere/at-all").returncode == 127


@pytest.mark.kubernetes
def test_bytes_go_through_a_pod(cluster, namespace, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    cluster.kubectl("run", "cat", f"--image={SMALL}", f"--namespace={namespace}", "--restart=Never")
    cluster.kubectl("wait", "pod/cat", f"--namespace={namespace}", "--for=condition=Ready", "--timeout=60s")
    api, content = Api(None), EVERY_BYTE * 40_000
    place = (namespace, "cat", "cat")
    with contextlib.closing(api.stream(place, ["cat"], seconds=30, stdin=True)) as stream:
        sender = threading.Thread(target=lambda: (stream.write(content), stream.end_input()))
        sender.start()
        assert stream.read_all(60) == content
        assert stream.exit_code == 0
        sender.join()
    with contextlib.closing(api.stream(place, ["sh", "-c", "echo a; echo b >&2; exit 7"], seconds=30)) as stream:
        assert sorted(stream.pieces()) == [(STDOUT, b"a\n"), (STDERR, b"b\n")]
        assert stream.exit_code == 7
    with contextlib.closing(api.stream(place, ["tty"], seconds=30, stdin=True, terminal=True)) as stream:
        assert stream.read_all(30) == b"/dev/pts/0\r\n"
    assert api.run(*place, ["echo", "a b", "$HOME"]) == "a b $HOME\n"
    with pytest.raises(KubernetesError, match=r"pod cat: sleep: nothing within 0\.5 s"):
        api.run(*place, ["sleep", "60"], seconds=0.5)
    with pytest.raises(KubernetesError, match=r"pod cat: none: .*not found"):
        api.run(*place, ["none"])
    with pytest.raises(KubernetesError, match='pod none: cat cannot run there: pods "none" not found') as error:
        api.run(namespace, "none", "cat", ["cat"])
    assert error.value.status == 404
    cluster.kubectl("delete", "pod", "cat", f"--namespace={namespace}", "--grace-period=1")
