"""The client of the engine's API, with a small real server."""

import io
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
    """An engine with one answer for each connection; yields its address and the requests that it got."""
    requests = []
    with tempfile.TemporaryDirectory(prefix="hb-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder, "engine"))
        listener.bind(path)
        listener.listen()

        def serve():
            for answer_ in answers:
                connection, _ = listener.accept()
                with connection:
                    requests.append(request(connection))
                    connection.sendall(answer_)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix://{path}", requests
        thread.join(5)


def request(connection):
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
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


def test_a_refusal_keeps_its_status_and_its_message():
    with served(reply(409, b'{"message": "it is paused"}'), reply(500, b"oops")) as (address, _):
        with pytest.raises(EngineRefusal, match="refuses POST /containers/a/kill: it is paused") as caught:
            Engine(address).post("/containers/a/kill")
        assert caught.value.status == 409
        with pytest.raises(EngineRefusal, match="refuses GET /version: oops"):
            Engine(address).get("/version")


def test_an_engine_that_is_gone_or_hangs_up_does_not_answer():
    with served(b"") as (address, _), pytest.raises(EngineError, match="does not answer: it closed the connection"):
        Engine(address).get("/version")
    with pytest.raises(EngineError, match=r"unix:///no/such/engine does not answer: No such file .* is it running"):
        Engine("unix:///no/such/engine").get("/version")


def test_reading_the_head_takes_no_byte_of_the_stream():
    """Another process inherits the connection and reads the rest."""
    upgraded = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\nfirst words"
    with served(upgraded) as (address, requests), Engine(address).open() as stream:
        hijack(stream, "/containers/a/attach", {"stream": True})
        assert stream.recv(100) == b"first words"
    assert requests[0][0] == "POST /containers/a/attach?stream=1 HTTP/1.1"


def test_an_answer_may_come_much_later_than_its_request():
    with served(reply(200, b'{"StatusCode": 7}')) as (address, _), Engine(address).open() as ending:
        send(ending, "POST", "/containers/a/wait", {"condition": "next-exit"})
        assert answer(ending, "the end") == {"StatusCode": 7}


def test_an_upload_is_sent_piece_by_piece():
    def fill(write):
        for piece in (b"abc", b"", b"d" * 17):
            write(piece)

    with served(reply(200)) as (address, requests):
        Engine(address).upload("a", "/opt/ml", fill)
    assert requests == [
        ("PUT /containers/a/archive?path=%2Fopt%2Fml HTTP/1.1", b"3\r\nabc\r\n11\r\n" + b"d" * 17 + b"\r\n0\r\n\r\n")
    ]


def test_a_download_is_a_stream():
    with served(reply(200, b"tar tar tar"), reply(404, b'{"message": "no such path"}')) as (address, _):
        with Engine(address).download("a", "/opt/ml/model") as stream:
            assert stream.read() == b"tar tar tar"
        with pytest.raises(EngineRefusal, match="no such path"), Engine(address).download("a", "/gone"):
            pass


def chunked(*pieces, end=b"0\r\n\r\n"):
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end


def test_a_streamed_answer_is_a_sequence_of_objects():
    steps = chunked(b'{"stream": "Step', b' 1"}\r\n{"aux"', b": 2}\r\n")
    with served(steps) as (address, requests):
        answers = Engine(address).stream("POST", "/build", {"t": "a:1"}, content=io.BytesIO(b"tar"))
        assert list(answers) == [{"stream": "Step 1"}, {"aux": 2}]
    assert requests == [("POST /build?t=a%3A1 HTTP/1.1", b"tar")]


def test_a_streamed_answer_that_ends_early_is_an_error():
    with served(chunked(b'{"stream": "Step 1"}\r\n', end=b"")) as (address, _):
        steps = Engine(address).stream("POST", "/build")
        assert next(steps) == {"stream": "Step 1"}
        with pytest.raises(EngineError, match="broke off its answer to POST /build"):
            next(steps)


def test_a_refused_stream_keeps_the_engines_message():
    answer_ = reply(500, b'{"message": "no space left"}')
    with served(answer_) as (address, _), pytest.raises(EngineRefusal, match="refuses POST /build: no space left"):
        list(Engine(address).stream("POST", "/build", content=io.BytesIO(b"tar")))


def test_a_log_is_taken_out_of_its_frames():
    frames = b"\x01\0\0\0\0\0\0\x03out" + b"\x02\0\0\0\0\0\0\x04err\n"
    with served(reply(200, frames)) as (address, requests):
        assert list(Engine(address).logs("a", follow=True)) == [b"out", b"err\n"]
    assert requests[0][0] == "GET /containers/a/logs?stdout=1&stderr=1&follow=1 HTTP/1.0"


def test_an_engine_by_tcp():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = Engine(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        assert not engine.is_local
        with engine.open() as ours, listener.accept()[0] as theirs:
            theirs.sendall(reply(200))
            assert read_head(ours) == 200


def test_an_engine_by_ssh(tmp_path, monkeypatch):
    """The user's own ssh carries the bytes; a program of that name records its arguments."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" > {tmp_path}/arguments\n'
        """while read -r line && [ "$line" != "$(printf '\\r')" ]; do :; done\n"""
        'printf "HTTP/1.0 200 OK\\r\\n\\r\\n[1]"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine = Engine("ssh://me@gpu-box")
    assert not engine.is_local
    assert engine.get("/images/json") == [1]
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("-o BatchMode=yes -o RemoteCommand=none -o PermitLocalCommand=no -- ")
    assert arguments.endswith(" -- ssh://me@gpu-box docker system dial-stdio\n")


def test_a_body_is_json():

    with served(reply(201, b"{}")) as (address, requests):
        Engine(address).post("/containers/create", {"Env": ["A=ü"]})
    assert json.loads(requests[0][1]) == {"Env": ["A=ü"]}
