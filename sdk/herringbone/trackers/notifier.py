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
from typing import Any
from urllib.parse import urlsplit

from herringbone.plan.notify import Notify, check_address, is_loopback
from herringbone.system.references import read_reference
from herringbone.trackers.facts import JobFacts
from herringbone.trackers.notices import Notice
from herringbone.trackers.tracker import calls_of
from herringbone_contract.masking import masked_text, printable

SIGNATURE = "Herringbone-Signature"
# For one notice; a server that answers a byte a minute is one that does not answer.
LIMIT_SECONDS = 30.0
_CALL_SECONDS = 10.0
_MAX_TEXT_CHARS, _MAX_SUBJECT_CHARS = 2_000, 150
# A notice as a destination gets it, under the names that webhooks and commands see.
Message = dict[str, str]


def message_of(notice: Notice, facts: JobFacts) -> Message:
    """Return the message of a notice: all texts are printable, and without secrets. Pure.

    >>> facts = JobFacts("a", "Failed", 5.0, 9.0, {}, {})
    >>> message_of(Notice("end", "failed", 9.0, "failed: exit code 1"), facts)["text"]
    'job a: failed: exit code 1'
    """
    return {
        "id": f"{facts.name}/{int(facts.created)}/{notice.id}",
        "event": notice.kind,
        "job": facts.name,
        "text": printable(masked_text(f"job {facts.name}: {notice.text}"))[:_MAX_TEXT_CHARS],
        "time": datetime.fromtimestamp(notice.time, timezone.utc).isoformat(timespec="seconds"),
        **{name: facts.own_tags.get(name, "") for name in ("backend", "instance_type", "instance_count")},
    }


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

    >>> without_mentions({"text": "<!channel>"}, "hooks.slack.com")
    {'text': '&lt;!channel&gt;'}
    """
    return {**message, "text": escape(message["text"], quote=False)} if host.endswith("slack.com") else message


def _by_webhook(to: Notify, message: Message, folder: Path | None) -> None:  # noqa: ARG001
    address = check_address("webhook", read_reference("webhook", to.webhook or ""))
    host = urlsplit(address).hostname or ""
    body = json.dumps(without_mentions(message, host)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "herringbone", "Herringbone-Id": message["id"]}
    if to.secret is not None:
        headers[SIGNATURE] = signed(body, read_reference("secret", to.secret), int(time.time()))
    request = urllib.request.Request(address, data=body, headers=headers, method="POST")  # noqa: S310 - checked
    # A proxy would look for a loopback address itself.
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(host) else []
    try:
        with urllib.request.build_opener(_NoRedirect, *proxies).open(request, timeout=_CALL_SECONDS):
            return
    except urllib.error.HTTPError as error:
        error.close()
        # Its body may quote the address, which may be a secret.
        why = "; a redirect is not followed: give the address that it leads to" if 300 <= error.code < 400 else ""
        raise OSError(f"it answers {error.code} {error.reason}{why}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def _by_command(to: Notify, message: Message, folder: Path | None) -> None:
    facts = {f"HERRINGBONE_NOTICE_{name.upper()}": value for name, value in message.items()}
    # Its output is that of this process: the export's log, or a terminal. A group of its own ends with it.
    process = subprocess.Popen(
        to.command or (), stdin=subprocess.PIPE, stdout=2, cwd=folder, env={**os.environ, **facts},
        start_new_session=True,
    )  # fmt: skip
    try:
        process.communicate(json.dumps(message).encode(), timeout=_CALL_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise OSError(f"it did not end within {_CALL_SECONDS:g} s, and was killed") from None
    if process.returncode:
        raise OSError(f"exit code {process.returncode}")


def _by_mail(to: Notify, message: Message, folder: Path | None) -> None:  # noqa: ARG001
    host, port = to.mail_server
    context = ssl.create_default_context()
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


def mail_of(to: Notify, message: Message) -> EmailMessage:
    """Return a message as mail. Pure."""
    mail, job = EmailMessage(), message["job"]
    mail["From"], mail["To"], mail["Subject"] = (
        to.mail_from,
        ", ".join(to.recipients),
        message["text"][:_MAX_SUBJECT_CHARS],
    )
    mail["Date"] = datetime.fromisoformat(message["time"])
    # The same for a notice that is sent again, by which mail programs show it once.
    mail["Message-ID"] = f"<{hashlib.sha256(message['id'].encode()).hexdigest()[:32]}@herringbone>"
    mail.set_content(f"{message['text']}\n\nherringbone describe {job}\nherringbone logs {job}\n")
    return mail


def send_test(to: Notify, folder: Path, now: float) -> None:
    """Send a destination a notice that says that it is a test. Raises `TrackerError`."""
    notice = Notice("test", "test", now, "this is a test: notices arrive here")
    Notifier(to, folder).send(message_of(notice, JobFacts("NAME", "InProgress", now, None, {}, {})))
