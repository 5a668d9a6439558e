"""The notice that the platform takes a host away: what is one, what is none, and what nobody learns from it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from herringbone_contract.events.drain import described
from herringbone_entry.observer import drain
from herringbone_entry.observer.drain import DrainNotice, is_there


class Platform(BaseHTTPRequestHandler):
    """Answers as AWS's instance metadata does: a token first, and 404 until the notice is there."""

    asked: list[str] = []  # noqa: RUF012

    def do_PUT(self) -> None:
        self.asked.append(self.headers["X-aws-ec2-metadata-token-ttl-seconds"])
        self.answer(200, b"t0k")

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/there")
            self.end_headers()
        elif self.path == "/guarded":
            self.answer(200 if self.headers["X-aws-ec2-metadata-token"] == "t0k" else 401)
        else:
            self.answer(200 if self.path == "/there" else 404)

    def answer(self, status: int, body: bytes = b"secret") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def platform():
    server = HTTPServer(("127.0.0.1", 0), Platform)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_url_is_a_notice_when_it_answers_200_itself(platform, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    paths = ("/there", "/none", "/moved", "/guarded")
    assert [is_there(platform + path) for path in paths] == [True, False, False, False]
    # A port that nobody listens at.
    assert not is_there("http://127.0.0.1:9/")


def test_metadata_of_aws_get_the_token_that_they_ask_for(platform, monkeypatch):
    monkeypatch.setattr(drain, "_METADATA", ("127.0.0.1",))
    assert is_there(f"{platform}/guarded")
    assert Platform.asked == ["60"]


@pytest.mark.parametrize(("notice", "expected"), [(["true"], True), (["false"], False), (["no-such-program"], False)])
def test_a_command_is_a_notice_when_it_exits_with_0(notice, expected):
    assert is_there(notice) == expected


def test_a_file_is_a_notice_once_and_a_later_look_says_nothing(tmp_path):
    notice = DrainNotice(str(tmp_path / "drain"), pause=0.001)
    assert notice.poll(1.0) == []
    (tmp_path / "drain").touch()
    while not (events := notice.poll(2.0)):
        pass
    assert events == [{"kind": "drain", "t": 2.0, "why": f"the file {tmp_path}/drain"}]
    assert notice.poll(3.0) == []


@pytest.mark.parametrize(
    "notice",
    ["relative", "", "ftp://h/x", "http://", "http://user:word@h/x", "https://h/a b", "/a\nb", [], ["a", ""], ["a\0"]],
)
def test_what_nobody_could_look_for_is_refused(notice):
    with pytest.raises(ValueError, match=r"expected a path|a URL has|a command is"):
        described(notice)


def test_words_about_a_notice_have_no_secret_of_it():
    assert "token" not in described("https://h.example/x?token=abc") + described(["look", "--token", "abc"])
