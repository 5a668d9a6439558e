"""Send notices: by a webhook, to a command, or as mail; `Notifier` is to a notice what a tracker is to a value.

A webhook gets a JSON object. With a secret, the header `Herringbone-Signature: t=SECONDS,v1=HEX` has the HMAC-SHA256 of
the bytes `SECONDS.BODY`, as Stripe signs its webhooks. `text` is the member that chat services show. A notice may come
twice, after a crash between its arrival and the note about it: the same `id` then says that it is the same notice.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import smtplib
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from email.message import EmailMessage
from html import escape
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from herringbone.plan.notify import Notify, check_address, is_loopback
from herringbone.system.references import read_reference
from herringbone.trackers.facts import JobFacts
from herringbone.trackers.notices import Notice
from herringbone.trackers.tracker import calls_of
from herringbone_contract.constants import MASK
from herringbone_contract.masking import masked_text, printable

SIGNATURE = "Herringbone-Signature"
# For one notice; a server that answers a byte a minute is one that does not answer.
LIMIT_SECONDS = 30.0
_CALL_SECONDS = 10.0
_MAX_TEXT_CHARS = 2_000
# Of the answer of a server, and of the output of a command.
_SHOWN_BYTES, _SAID_BYTES = 200, 2_000
_READS, _READ_BYTES, _PAUSE_SECONDS = 64, 65_536, 0.02


class NotTakenError(Exception):
    """The destination does not take a notice, as the text says."""


class Message(NamedTuple):
    """A notice as a destination gets it: all texts are printable, and without secrets."""

    id: str
    event: str
    job: str
    text: str
    time: str
    backend: str = ""
    instance_type: str = ""
    instance_count: str = ""

    @property
    def subject(self) -> str:
        """The line of a mail's subject."""
        return self.text[:150]

    def to_json(self) -> bytes:
        """Return the body of a webhook, and the standard input of a command."""
        return json.dumps({name: value for name, value in self._asdict().items() if value}).encode()


def message_of(notice: Notice, facts: JobFacts) -> Message:
    """Return the message of a notice. Pure.

    >>> facts = JobFacts("digits", "Failed", 5.0, 9.0, {}, {"herringbone.backend": "local"})
    >>> message_of(Notice("end", "failed", 9.0, "failed: algo-1 rank 0: exit code 1"), facts).to_json()[:70]
    b'{"id": "digits/5/end", "event": "failed", "job": "digits", "text": "jo'
    """
    text = printable(masked_text(f"job {facts.name}: {notice.text}"))
    return Message(
        id=f"{facts.name}/{int(facts.created)}/{notice.id}",
        event=notice.kind,
        job=facts.name,
        text=text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 3]}...",
        time=datetime.fromtimestamp(notice.time, timezone.utc).isoformat(timespec="seconds"),
        **{name: facts.own_tags.get(name, "") for name in ("backend", "instance_type", "instance_count")},
    )


def signed(body: bytes, secret: str, now: int) -> str:
    """Return the signature of a body at a time, which the receiver compares with its own clock. Pure.

    >>> signed(b"{}", "secret", 1700000000)[:20]
    't=1700000000,v1=b856'
    """
    content = f"{now}.".encode() + body
    return f"t={now},v1={hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()}"


class Notifier:
    """See `Tracker`: sends the notices of one job to one destination; `folder` is the one in which a command runs."""

    def __init__(self, destination: Notify, folder: Path | None = None, *, limit: float = LIMIT_SECONDS) -> None:
        self._to, self._folder, self._limit = destination, folder, limit
        self._facts: JobFacts | None = None
        self.state: dict[str, Any] = {}

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:  # noqa: ARG002 - the fold has all that is kept
        self._facts = facts

    def log(self, points: Sequence[Any]) -> None:
        """Send notices, one after the other. Raises `TrackerError`."""
        assert self._facts is not None, "begun first"
        for notice in points:
            self.send(message_of(notice, self._facts))

    def send(self, message: Message) -> None:
        """Send one message; return when its destination has taken it. Raises a transient `TrackerError`."""
        send = _by_webhook if self._to.webhook is not None else _by_mail if self._to.command is None else _by_command
        # Whatever is wrong now may be right in an hour: a chat service that is down, a command that is being edited.
        with calls_of(str(self._to), lambda _: True):
            within(self._limit, lambda: send(self._to, message, self._folder))

    def end(self, facts: JobFacts) -> None:
        """Do nothing: the job's end is a notice."""

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def within(seconds: float, call: Callable[[], None]) -> None:
    """Return when `call` has returned, or raise its error; raise `TimeoutError` after `seconds`."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            errors.append(error)

    # A name server and a server that drips bytes obey no time limit of a socket.
    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead a signed notice to anybody."""

    def redirect_request(self, *_: Any) -> None:
        return None


def without_mentions(message: Message, host: str) -> Message:
    """Return a message for a host: on Slack, words of a script in a failure must not call everybody. Pure.

    >>> without_mentions(Message("1", "failed", "a", "<!channel>", ""), "hooks.slack.com").text
    '&lt;!channel&gt;'
    """
    return message._replace(text=escape(message.text, quote=False)) if host.endswith("slack.com") else message


def _by_webhook(to: Notify, message: Message, folder: Path | None) -> None:  # noqa: ARG001
    address = check_address("webhook", read_reference("webhook", to.webhook or ""))
    host = urlsplit(address).hostname or ""
    body = without_mentions(message, host).to_json()
    headers = {"Content-Type": "application/json", "User-Agent": "herringbone", "Herringbone-Id": message.id}
    if to.secret is not None:
        headers[SIGNATURE] = signed(body, read_reference("secret", to.secret), int(time.time()))
    request = urllib.request.Request(address, data=body, headers=headers, method="POST")  # noqa: S310 - checked
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if is_loopback(host):
        # A proxy would look for itself.
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_CALL_SECONDS):
            return
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_SHOWN_BYTES).decode(errors="replace")
        if 300 <= error.code < 400:
            said = "a redirect, which is not followed; give the address that it leads to"
        # Some answers quote the address, which may be a secret.
        said = said.replace(request.selector, MASK) if len(request.selector) > 1 else said
        raise NotTakenError(f"it answers {error.code} {error.reason}: {said}".rstrip(": ")) from None
    except urllib.error.URLError as error:
        raise NotTakenError(str(error.reason)) from None


def _by_command(to: Notify, message: Message, folder: Path | None) -> None:
    facts = {f"HERRINGBONE_NOTICE_{name.upper()}": value for name, value in message._asdict().items()}
    process = subprocess.Popen(
        to.command or (),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **facts},
        # A group of its own, for the end of a command that takes too long, and of all that it has started.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as output:
        # A pipe has more room than a message needs, so this waits for no reader.
        with contextlib.suppress(BrokenPipeError), process.stdin as body:
            body.write(message.to_json())
        said = _last_words(process, output.fileno())
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotTakenError(f"exit code {process.returncode}: {last}".rstrip(": "))


def _last_words(process: subprocess.Popen[bytes], output: int) -> bytes:
    """Return the end of a command's output once the command has ended; kill one that takes too long."""
    deadline, said = time.monotonic() + _CALL_SECONDS, b""
    os.set_blocking(output, False)
    # Not until the end of the output: something in the background may have it open for days.
    while process.poll() is None:
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotTakenError(f"it did not end within {_CALL_SECONDS:g} s, and was killed")
        said = _read_on(output, said)
        time.sleep(_PAUSE_SECONDS)
    return _read_on(output, said)


def _read_on(output: int, said: bytes) -> bytes:
    """Return the end of what was said, with all that can be read now."""
    with contextlib.suppress(BlockingIOError):
        # So many reads: a program that prints without pause must not keep this one from its deadline.
        for _ in range(_READS):
            if not (chunk := os.read(output, _READ_BYTES)):
                break
            said = (said + chunk)[-_SAID_BYTES:]
    return said


def _by_mail(to: Notify, message: Message, folder: Path | None) -> None:  # noqa: ARG001
    host, port = to.mail_server
    context = ssl.create_default_context()
    try:
        if to.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_CALL_SECONDS, context=context)
        else:
            server = smtplib.SMTP(host, port, timeout=_CALL_SECONDS)
        with server:
            if to.security == "starttls":
                # Refused where the server offers none: a login in the open would be a secret in the open.
                server.starttls(context=context)
            if to.login is not None and to.password is not None:
                server.login(to.login, read_reference("password", to.password))
            if refused := server.send_message(mail_of(to, message)):
                # Others have it, and would get it once more.
                print(f"{to}: not taken for {', '.join(refused)}", file=sys.stderr)
    except smtplib.SMTPResponseException as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        raise NotTakenError(f"{host} answers {error.smtp_code}: {said}") from None


def mail_of(to: Notify, message: Message) -> EmailMessage:
    """Return a message as mail. Pure."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = to.mail_from, ", ".join(to.recipients), message.subject
    mail["Date"] = datetime.fromisoformat(message.time)
    # The same for a notice that is sent again, by which mail programs show it once.
    mail["Message-ID"] = f"<{hashlib.sha256(message.id.encode()).hexdigest()[:32]}@herringbone>"
    rows = {"job": message.job, "event": message.event, "time": message.time, "backend": message.backend}
    lines = [message.text, "", *(f"{name + ':':<9} {value}" for name, value in rows.items() if value)]
    lines += ["", f"herringbone describe {message.job}", f"herringbone logs {message.job}"]
    mail.set_content("\n".join(lines) + "\n")
    return mail


def send_test(to: Notify, folder: Path, now: float) -> None:
    """Send a destination a notice that says that it is a test. Raises `TrackerError`."""
    moment = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds")
    text = "herringbone: this is a test; notices of jobs arrive here"
    Notifier(to, folder).send(Message(f"test/{int(now)}", "test", "-", text, moment))
