"""The engine's API over plain sockets, spoken with a small real server."""

import json
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from herringbone.engine.client import Engine, EngineRefusal, answer, hijack, read_head, send
from herringbone_contract.errors import EngineError


@contextmanager
def served(*answers):
    """An engine that gives these answers, one a connection; gives its address and the requests that came."""
    requests = []
    with tempfile.TemporaryDirectory(prefix="hb-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "engine"))
        listener.bind(path)
        listener.listen()

        def serve():
            for each in answers:
                connection, _ = listener.accept()
                with connection:
                    requests.append(request(connection))
                    connection.sendall(each)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix://{path}", requests
        thread.join(5)


def request(connection):
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65_536)
    head, _, body = got.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    if "Transfer-Encoding" in fields:
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65_536)
    else:
        while len(body) < int(fields.get("Content-Length", 0)):
            body += connection.recv(65_536)
    return head.decode().split("\r\n")[0], body


def reply(status, body=b""):
    return b"HTTP/1.0 %d Word\r\nContent-Type: application/json\r\n\r\n%b" % (status, body)


def test_a_request_and_its_answer():
    with served(reply(200, b'{"Version": "27.1"}'), reply(201, b'{"Id": "a1"}'), reply(204)) as (address, requests):
        engine = Engine(address)
        assert engine.get("/images/json", filters={"label": ["a=b"]}, all=True, name=None) == {"Version": "27.1"}
        assert engine.post("/containers/create", {"Image": "i"}, name="x-algo-1") == {"Id": "a1"}
        assert engine.delete("/containers/a1") is None
    assert requests == [
        ("GET /images/json?filters=%7B%22label%22%3A+%5B%22a%3Db%22%5D%7D&all=1 HTTP/1.0", b""),
        ("POST /containers/create?name=x-algo-1 HTTP/1.0", b'{"Image": "i"}'),
        ("DELETE /containers/a1 HTTP/1.0", b""),
    ]


def test_a_refusal_keeps_its_status_and_its_words():
    with served(reply(409, b'{"message": "it is paused"}'), reply(500, b"oops")) as (address, _):
        with pytest.raises(EngineRefusal, match="refuses POST /containers/a/kill: it is paused") as caught:
            Engine(address).post("/containers/a/kill")
        assert caught.value.status == 409
        with pytest.raises(EngineRefusal, match="refuses GET /version: oops"):
            Engine(address).get("/version")


def test_an_engine_that_is_gone_or_hangs_up_is_said_to_be_silent():
    with served(b"") as (address, _), pytest.raises(EngineError, match="does not answer: it closed the connection"):
        Engine(address).get("/version")
    with pytest.raises(EngineError, match=r"unix:///no/such/engine does not answer: No such file .* is it running"):
        Engine("unix:///no/such/engine").get("/version")


def test_a_stream_begins_right_behind_its_head():
    """Another process goes on reading it: not a byte may be taken too many."""
    upgraded = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\nfirst words"
    with served(upgraded) as (address, requests), Engine(address).open() as stream:
        hijack(stream, "/containers/a/attach", {"stream": True})
        assert stream.recv(100) == b"first words"
    assert requests[0][0] == "POST /containers/a/attach?stream=1 HTTP/1.1"


def test_an_answer_may_come_much_later_than_its_question():
    with served(reply(200, b'{"StatusCode": 7}')) as (address, _), Engine(address).open() as ending:
        send(ending, "POST", "/containers/a/wait", {"condition": "next-exit"})
        assert answer(ending, "the end") == {"StatusCode": 7}


def test_what_is_uploaded_goes_piece_by_piece():
    def fill(write):
        for piece in (b"abc", b"", b"d" * 17):
            write(piece)

    with served(reply(200)) as (address, requests):
        Engine(address).upload("a", "/opt/ml", fill)
    assert requests == [
        ("PUT /containers/a/archive?path=%2Fopt%2Fml HTTP/1.1", b"3\r\nabc\r\n11\r\n" + b"d" * 17 + b"\r\n0\r\n\r\n")
    ]


def test_what_is_downloaded_is_a_stream():
    with served(reply(200, b"tar tar tar"), reply(404, b'{"message": "no such path"}')) as (address, _):
        with Engine(address).download("a", "/opt/ml/model") as stream:
            assert stream.read() == b"tar tar tar"
        with pytest.raises(EngineRefusal, match="no such path"), Engine(address).download("a", "/gone"):
            pass


def test_an_engine_by_tcp():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = Engine(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        assert not engine.is_here
        with engine.open() as ours, listener.accept()[0] as theirs:
            theirs.sendall(reply(200))
            assert read_head(ours) == 200


def test_an_engine_by_ssh(tmp_path, monkeypatch):
    """The user's own ssh carries the bytes; here a program of that name does, to show what it is asked."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" > {tmp_path}/asked\n'
        """while read -r line && [ "$line" != "$(printf '\\r')" ]; do :; done\n"""
        'printf "HTTP/1.0 200 OK\\r\\n\\r\\n[1]"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = Engine("ssh://me@gpu-box")
    assert not engine.is_here
    assert engine.get("/images/json") == [1]
    assert (tmp_path / "asked").read_text() == "-o BatchMode=yes -- ssh://me@gpu-box docker system dial-stdio\n"


def test_a_body_is_json():

    with served(reply(201, b"{}")) as (address, requests):
        Engine(address).post("/containers/create", {"Env": ["A=ü"]})
    assert json.loads(requests[0][1]) == {"Env": ["A=ü"]}
