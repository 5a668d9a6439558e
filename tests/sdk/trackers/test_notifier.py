"""What sends notices, against a real HTTP server, a real SMTP server with STARTTLS, and real commands."""

import email
import email.policy
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.sdk.trackers.servers import Hook, Smtp, served
from tests.waiting import wait_until

from herringbone.plan.notify import Notify
from herringbone.trackers import notifier
from herringbone.trackers.facts import JobFacts
from herringbone.trackers.notices import Notice
from herringbone.trackers.notifier import Notifier, mail_of, message_of, within
from herringbone_contract.errors import TrackerError

FACTS = JobFacts("digits", "Failed", 5.0, 9.0, {}, {"herringbone.backend": "local"})
NOTICE = Notice("end", "failed", 9.0, "failed after 4 s: rank 0 on algo-1: ValueError: a < b <!channel>\x1b[2J")
TEXT = "job digits: failed after 4 s: rank 0 on algo-1: ValueError: a < b <!channel>\\x1b[2J"


def send(to, notice=NOTICE, folder=None, **how):
    sender = Notifier(to, folder, **how)
    sender.begin(FACTS, {})
    sender.log([notice])


def refusal(to, **how):
    with pytest.raises(TrackerError) as caught:
        send(to, **how)
    # Whatever it is now, it may be right in an hour.
    assert caught.value.transient
    return str(caught.value)


def test_a_webhook_gets_a_signed_object_that_chat_services_show(monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", "s3cr3t")
    # A proxy would look for its own loopback.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with served(Hook()) as hook:
        send(Notify(webhook=hook.address, secret="env:HOOK_SECRET"))  # noqa: S106 - its place
        ((headers, body),) = hook.posts
    assert json.loads(body) == {
        "id": "digits/5/end",
        "event": "failed",
        "job": "digits",
        "text": TEXT,
        "time": "1970-01-01T00:00:09+00:00",
        "backend": "local",
        "instance_type": "",
        "instance_count": "",
    }
    assert (headers["Content-Type"], headers["Herringbone-Id"]) == ("application/json", "digits/5/end")
    moment, _, signature = headers["Herringbone-Signature"].partition(",v1=")
    moment = moment.removeprefix("t=")
    assert abs(time.time() - int(moment)) < 60
    assert signature == hmac.new(b"s3cr3t", f"{moment}.".encode() + body, hashlib.sha256).hexdigest()


def test_an_unsigned_webhook_has_no_signature():
    with served(Hook()) as hook:
        send(Notify(webhook=hook.address))
        assert "Herringbone-Signature" not in hook.posts[0][0]


def test_an_address_in_a_variable_is_in_no_message(monkeypatch):
    with served(Hook(0, 404, text="no hook at /hook/T00")) as hook:
        monkeypatch.setenv("HOOK", hook.address)
        assert refusal(Notify(webhook="env:HOOK")) == "webhook env:HOOK: it answers 404 Not Found"
    monkeypatch.setenv("HOOK", "http://ci.example.com/T00")
    assert "T00" not in refusal(Notify(webhook="env:HOOK"))
    monkeypatch.delenv("HOOK")
    assert "the variable HOOK is not set in this process" in refusal(Notify(webhook="env:HOOK"))


@pytest.mark.parametrize("code", [302, 307])
def test_a_redirect_is_not_followed(code):
    with served(Hook()) as elsewhere, served(Hook(0, code, headers={"Location": elsewhere.address})) as hook:
        assert f"it answers {code} " in refusal(Notify(webhook=hook.address))
        assert elsewhere.posts == []


def test_a_webhook_that_is_down_or_slow_is_a_transient_error():
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "Connection refused" in refusal(Notify(webhook=address))
        listener.listen()
        # It takes the connection, and answers nothing.
        assert refusal(Notify(webhook=address), limit=0.05) == f"webhook {address}: no answer within 0.05 s"


def test_an_endless_answer_costs_nothing():
    with served(Hook(0, 500, text="x" * (1 << 20))) as hook:
        assert len(refusal(Notify(webhook=hook.address))) < 500


def test_a_command_gets_the_facts_in_its_environment_and_at_its_standard_input(tmp_path):
    (tmp_path / "tell.py").write_text(
        "import json, os, sys\n"
        "facts = {k: v for k, v in os.environ.items() if k.startswith('HERRINGBONE_NOTICE_')}\n"
        "open('told', 'w').write(json.dumps([sys.argv[1:], json.load(sys.stdin), facts]))\n"
    )
    send(Notify(command=(sys.executable, "tell.py", "$(touch x); `touch x`")), folder=tmp_path)
    words, body, facts = json.loads((tmp_path / "told").read_text())
    assert words == ["$(touch x); `touch x`"]
    assert (body["text"], body["event"]) == (TEXT, "failed")
    assert (facts["HERRINGBONE_NOTICE_TEXT"], facts["HERRINGBONE_NOTICE_JOB"]) == (TEXT, "digits")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tell.py", "told"]


def test_a_command_that_fails_or_reads_nothing(tmp_path):
    assert refusal(Notify(command=("sh", "-c", "exec <&-; echo one; exit 3"))) == "command sh: exit code 3"
    assert "No such file" in refusal(Notify(command=("/no/such/program",)))


def test_a_command_that_does_not_end_is_killed_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(notifier, "_CALL_SECONDS", 0.3)
    command = ("sh", "-c", "sleep 987 & echo $! > child; sleep 986")
    assert (
        refusal(Notify(command=command), folder=tmp_path) == "command sh: it did not end within 0.3 s, and was killed"
    )
    status = Path("/proc", (tmp_path / "child").read_text().strip(), "status")
    # Nobody may have collected it yet.
    wait_until(lambda: not status.exists() or "zombie" in status.read_text())


def test_a_command_may_leave_something_in_the_background(tmp_path):
    begin = time.monotonic()
    send(Notify(command=("sh", "-c", "sleep 5 & echo $! > child")), folder=tmp_path)
    assert time.monotonic() - begin < 4
    subprocess.run(["kill", (tmp_path / "child").read_text().strip()], check=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    path = tmp_path_factory.mktemp("smtp") / "both.pem"
    words = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", *words, *names, "-keyout", path, "-out", f"{path}.crt"],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + path.with_suffix(".pem.crt").read_text())
    return path


def test_mail_goes_over_starttls_with_a_login_from_a_file(certificate, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    (tmp_path / "password").write_text("right\n")
    with served(Smtp(certificate, refuses=("b@example.com",))) as smtp:
        to = {"mail": ("a@example.com", "b@example.com"), "server": smtp.place, "login": "me@example.com"}
        send(Notify(**to, password=f"file:{tmp_path}/password"))
        assert (smtp.logins, smtp.encrypted) == ([["me@example.com", "right"]], [True])
        mail = email.message_from_bytes(smtp.mail[0], policy=email.policy.default)
        (tmp_path / "password").write_text("wrong")
        assert "535" in refusal(Notify(**to, password=f"file:{tmp_path}/password"))
    assert (mail["To"], mail["From"]) == ("a@example.com, b@example.com", "me@example.com")
    assert mail["Subject"] == TEXT[:150]
    assert "herringbone logs digits" in mail.get_content()


def test_mail_is_never_sent_in_the_open_by_accident(certificate, monkeypatch):
    with served(Smtp()) as smtp:
        assert "STARTTLS" in refusal(Notify(mail="a@example.com", server=smtp.place))
        assert smtp.mail == []
        send(Notify(mail="a@example.com", server=smtp.place, security="none"))
        assert smtp.encrypted == [False]
    # A certificate that nobody here trusts.
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    with served(Smtp(certificate)) as smtp:
        assert "CERTIFICATE_VERIFY_FAILED" in refusal(Notify(mail="a@example.com", server=smtp.place))
        assert smtp.mail == []


def test_the_same_notice_has_the_same_message_id():
    to = Notify(mail="a@example.com", server="smtp.example.com")
    first, second = (mail_of(to, message_of(NOTICE, FACTS)) for _ in range(2))
    assert first["Message-ID"] == second["Message-ID"]
    other = mail_of(to, message_of(NOTICE._replace(id="hung-1"), FACTS))
    assert other["Message-ID"] != first["Message-ID"]


@pytest.mark.parametrize(
    "text", ["failed: a\r\nBcc: b@example.com\r\n\r\nx", "failed: \ud800" + "x" * 10_000, "ü" * 500]
)
def test_no_text_of_a_script_becomes_a_header(text):
    message = message_of(NOTICE._replace(text=text), FACTS)
    mail = mail_of(Notify(mail="a@example.com", server="h"), message)
    assert mail["Bcc"] is None
    assert len(message["text"]) <= 2000
    assert email.message_from_bytes(mail.as_bytes()).keys() == mail.keys()


def test_no_secret_of_a_failure_is_sent():
    text = message_of(NOTICE._replace(text="failed: postgres://me:hunter2@db --api-key hunter2"), FACTS)["text"]
    assert "hunter2" not in text


def test_within_raises_what_the_call_raises():
    with pytest.raises(ValueError, match="x"):
        within(5.0, lambda: int("x"))
