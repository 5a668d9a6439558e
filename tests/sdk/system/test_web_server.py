"""A server with limits: bodies arrive whole, and bytes of one connection delay no other."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
import time
from asyncio import sslproto
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
from herringbone.system.connections import Limits, Room  # noqa: E402
from herringbone.system.web_server import CountingListener, web_config  # noqa: E402


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer POSTs with the hash of their body, and all others at once."""
    digest = hashlib.sha256()
    if scope["type"] == "http" and scope["method"] == "POST":
        more = True
        while more:
            message = await receive()
            digest.update(message.get("body", b""))
            more = message.get("more_body", False)
    if scope["type"] == "http":
        content = digest.hexdigest().encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64")]})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    number = listener.getsockname()[1]
    room = Room(Limits())
    server = uvicorn.Server(web_config(application, room, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [CountingListener(listener, room)]})
    thread.start()
    yield number
    server.should_exit = True
    thread.join(20)


def asked(port: int, method: str, body: Any = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, "/", body)
    answer = connection.getresponse().read()
    connection.close()
    return answer


@pytest.mark.parametrize("size", [0, 8 << 10, (8 << 10) + 1, 3_000_001])
def test_a_body_arrives_whole_in_pieces_and_in_chunks(port: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    expected = hashlib.sha256(body[:size]).hexdigest().encode()
    assert asked(port, "POST", body[:size]) == expected
    assert asked(port, "POST", iter([body[:size]] if size else [])) == expected


def test_requests_that_come_together_are_answered_in_turn(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        body = b"x" * 20_000
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 20000\r\n\r\n"
        client.sendall((head + body) * 3)
        answers = b""
        while answers.count(hashlib.sha256(body).hexdigest().encode()) < 3:
            data = client.recv(65_536)
            assert data, answers
            answers += data


def test_chunks_of_one_byte_of_strangers_delay_nobody(port: int) -> None:
    """Each read of 250 KB held the loop for 0.3 s, and a stranger needs no key to send them."""
    over = threading.Event()

    def flood() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.settimeout(0.2)
            client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            while not over.is_set():
                try:
                    client.sendall(b"1\r\nx\r\n" * 20_000)
                except TimeoutError:
                    continue
                except OSError:
                    return

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    times = []
    for _ in range(5):
        begin = time.monotonic()
        asked(port, "GET")
        times.append(time.monotonic() - begin)
    over.set()
    for thread in threads:
        thread.join(20)
    assert sorted(times)[2] < 0.5, times


def test_only_clients_that_may_speak_tls_get_a_handshake() -> None:
    """asyncio prepared one for each stranger: users waited for half a second."""
    sslproto.SSLProtocol.max_size = 1 << 18
    room = Room(Limits())
    web_config(application, room)
    assert sslproto.SSLProtocol.max_size <= 1 << 15
    with CountingListener(socket.create_server(("127.0.0.1", 0)), room, tls=True) as listener:
        listener.settimeout(20)
        clients = [socket.create_connection(listener.getsockname(), timeout=20) for _ in range(4)]
        for client, begin in zip(clients, (b"GET / HTTP/1.1\r\n", b"\x16\x02", b"", b"\x16\x03\x01"), strict=True):
            client.sendall(begin)
        accepted, address = listener.accept()
        assert address == clients[3].getsockname()
        for refused in clients[:2]:
            with pytest.raises(ConnectionResetError):
                refused.recv(1)
        accepted.close()
        for client in clients:
            client.close()
