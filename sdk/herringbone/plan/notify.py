"""Destinations of a job's notices, the option `notify`: a webhook, a command, or mail. Pure.

    {"webhook": "https://ci.example.com/hook", "secret": "env:HOOK_SECRET"}      an address, which may be env:NAME, too
    {"command": ["notify-send", "Herringbone"]}                                  a program, as words
    {"mail": "me@example.com", "server": "smtp.example.com", "login": "me", "password": "file:/etc/smtp"}

A destination is a part of the stored plan, so it holds no secret: `env:NAME` and `file:PATH` say where one is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from herringbone_contract.errors import OptionError
from herringbone_contract.masking import masked_text, masked_texts

NoticeKind = Literal["ended", "failed", "restarted", "hung", "straggling", "fault", "late", "budget", "idle"]
KINDS: tuple[str, ...] = get_args(NoticeKind)
MAX_DESTINATIONS = 8
ENVIRONMENT, FILE = "env:", "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAIL = re.compile(r"[^\s@<>,;:\"()\\]+@[^\s@<>,;:\"()\\]+")
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?")
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
# Services whose addresses let everybody post who knows them.
_SECRET_ADDRESSES = re.compile(
    r"(.*\.)?(slack\.com|office\.com|office365\.com|logic\.azure\.com|powerplatform\.com|discord\.com|discordapp\.com"
    r"|chat\.googleapis\.com|telegram\.org|zapier\.com|ifttt\.com|ntfy\.sh)",
    re.IGNORECASE,
)
# The kinds of destinations, and the members that each of them takes besides `on`.
_MEMBERS = {
    "webhook": ("secret",),
    "command": (),
    "mail": ("server", "sender", "login", "password", "security"),
}


class Notify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One destination: exactly one of `webhook`, `command` and `mail` is given.

    >>> str(Notify(webhook="https://ci.example.com/hook"))
    'webhook https://ci.example.com/hook'

    `secret` signs what a webhook gets. `server` is HOST or HOST:PORT, `security` its encryption. `on` are the kinds of
    notices that it gets, by default all.
    """

    webhook: str | None = None
    secret: str | None = None
    command: tuple[str, ...] | None = None
    mail: tuple[str, ...] | str | None = None
    server: str | None = None
    sender: str | None = msgspec.field(name="from", default=None)
    login: str | None = None
    password: str | None = None
    security: Literal["starttls", "tls", "none"] = "starttls"
    on: tuple[NoticeKind, ...] | None = None

    def __str__(self) -> str:
        """Return the destination for people."""
        if self.webhook is not None:
            return f"webhook {self.webhook}"
        return f"command {self.command[0]}" if self.command else f"mail {', '.join(self.recipients)}"

    @property
    def file_name(self) -> str:
        """The name, without a suffix, of the files in the job's folder that belong to this destination."""
        content = json.dumps(msgspec.to_builtins(self), sort_keys=True)
        return f"notify-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    @property
    def recipients(self) -> tuple[str, ...]:
        """The addresses that get mail."""
        return (self.mail,) if isinstance(self.mail, str) else self.mail or ()

    @property
    def mail_from(self) -> str:
        """The address that mail comes from: the login, if that is one, or the first recipient."""
        return self.sender or (self.login if self.login and _MAIL.fullmatch(self.login) else self.recipients[0])

    @property
    def mail_server(self) -> tuple[str, int]:
        """Host and port of the mail server."""
        match = _SERVER.fullmatch(self.server or "")
        assert match is not None, "checked when the option was parsed"
        return match["host"], int(match["port"] or _PORTS[self.security])

    @property
    def references(self) -> dict[str, str]:
        """The members whose values are elsewhere: `env:NAME` or `file:PATH`, by the member's name."""
        texts = {name: getattr(self, name) for name in ("webhook", "secret", "password")}
        return {name: text for name, text in texts.items() if text and text.startswith((ENVIRONMENT, FILE))}


def written_in_full(value: Any) -> Any:
    """Return destinations as a list of dicts: one alone stands for a list, and a text for a webhook.

    >>> written_in_full("env:CHAT_HOOK")
    [{'webhook': 'env:CHAT_HOOK'}]
    """
    several = value if isinstance(value, (list, tuple)) else [value]
    return [{"webhook": one} if isinstance(one, str) else one for one in several]


def check_notify(destinations: Sequence[Notify]) -> None:
    """Check destinations. Raises `OptionError`; its message quotes no member that is to hold a secret."""
    if len(destinations) > MAX_DESTINATIONS:
        raise OptionError(f"notify: {len(destinations)} destinations, the limit is {MAX_DESTINATIONS}")
    for position, one in enumerate(destinations):
        where = f"notify[{position}]"
        _check_members(where, one)
        for name in ("secret", "password"):
            if (text := getattr(one, name)) is not None:
                _check_reference(f"{where}.{name}", text)
        if one.webhook is not None:
            _check_webhook(f"{where}.webhook", one.webhook)
        elif one.command is not None:
            _check_command(f"{where}.command", one.command)
        else:
            _check_mail(where, one)
        if destinations.index(one) != position:
            raise OptionError(f"{where}: {one} is given twice; give it once")


def absolute_notify(destinations: Sequence[Notify], base: Path) -> tuple[Notify, ...]:
    """Return destinations whose files have absolute paths; relative ones count from `base`."""

    def place(text: str) -> str:
        return f"{FILE}{base / text.removeprefix(FILE)}" if text.startswith(FILE) else text

    return tuple(
        msgspec.structs.replace(one, **{name: place(text) for name, text in one.references.items()})
        for one in destinations
    )


def check_address(where: str, address: str) -> str:
    """Return the address of a webhook; raise `OptionError`, which does not quote it, for one that is not safe.

    >>> check_address("notify", "http://127.0.0.1:8080/hook")
    'http://127.0.0.1:8080/hook'
    """
    try:
        url = urlsplit(address)
        host, _ = url.hostname, url.port
    except ValueError:
        url, host = urlsplit(""), None
    if not host or url.scheme not in ("http", "https") or not address.isprintable() or " " in address:
        raise OptionError(f"{where}: it is no address of a webhook; write https://HOST/PATH")
    if url.username is not None or url.password is not None:
        raise OptionError(f"{where}: the address names a user, whose password would be stored; use `secret`")
    if url.scheme == "http" and not is_loopback(host):
        raise OptionError(f"{where}: http:// sends notices in the open to {host}; write https://, or use this machine")
    return address


def is_loopback(host: str) -> bool:
    """Report whether a host is this machine, without asking a name server."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_members(where: str, one: Notify) -> None:
    kinds = [kind for kind in _MEMBERS if getattr(one, kind) is not None]
    if len(kinds) != 1:
        given = " and ".join(kinds) or "none"
        raise OptionError(f"{where}: one of {', '.join(_MEMBERS)} is a destination, and {given} is given; give one")
    others = {name for kind, members in _MEMBERS.items() if kind != kinds[0] for name in members}
    for field in msgspec.structs.fields(Notify):
        if field.name in others and getattr(one, field.name) != field.default:
            raise OptionError(f"{where}.{field.encode_name}: a {kinds[0]} has none; leave it out")
    if one.on is not None and not one.on:
        raise OptionError(f"{where}.on: it names no kind of notice; name some of {', '.join(KINDS)}, or leave it out")


def _check_reference(where: str, text: str) -> None:
    name = text.removeprefix(ENVIRONMENT)
    if (name != text and _VARIABLE.fullmatch(name)) or text.removeprefix(FILE) not in (text, ""):
        return
    raise OptionError(
        f"{where}: a secret itself would be stored with the job; name the variable or the file that has it: "
        f"{ENVIRONMENT}NAME or {FILE}PATH"
    )


def _check_webhook(where: str, text: str) -> None:
    if text.startswith((ENVIRONMENT, FILE)):
        _check_reference(where, text)
        return
    host = urlsplit(check_address(where, text)).hostname or ""
    if _SECRET_ADDRESSES.fullmatch(host) or masked_text(text) != text:
        raise OptionError(
            f"{where}: whoever knows this address of {host} can post there, so it is a secret, which would be stored "
            f"with the job; name the variable or the file that has it: {ENVIRONMENT}NAME or {FILE}PATH"
        )


def _check_command(where: str, words: tuple[str, ...]) -> None:
    if not words or not words[0]:
        raise OptionError(f"{where}: it names no program; write its words: ['notify-send', 'Herringbone']")
    if masked_texts(list(words)) != list(words):
        raise OptionError(
            f"{where}: a secret, which would be an argument of a process and stored with the job; the command gets "
            "your own variables, so let it read one of them"
        )


def _check_mail(where: str, one: Notify) -> None:
    if not one.recipients:
        raise OptionError(f"{where}.mail: it names nobody; write an address")
    senders = () if one.sender is None else (one.sender,)
    for address in (*one.recipients, *senders):
        if not _MAIL.fullmatch(address):
            raise OptionError(f"{where}: {address!r} is no address of mail; write NAME@HOST alone")
    match = _SERVER.fullmatch(one.server or "")
    if match is None or not 0 < int(match["port"] or 1) < 65_536:
        raise OptionError(f"{where}.server: mail needs a server that takes it; write HOST, or HOST:PORT")
    if (one.login is None) != (one.password is None):
        raise OptionError(f"{where}: login and password go together; give both, or neither")
    if one.security == "none" and not is_loopback(match["host"]):
        raise OptionError(f"{where}.security: 'none' sends mail in the open to {match['host']}; use starttls or tls")
