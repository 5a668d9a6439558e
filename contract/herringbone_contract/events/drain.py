"""The notice that a platform takes a host away, as the option `drain_notice` names it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

_SCHEMES = ("http://", "https://")


def described(notice: str | Sequence[str]) -> str:
    """Return what the notice is in words.

    >>> described("/run/drain"), described("http://169.254.169.254/latest/meta-data/spot/instance-action")[:30]
    ('the file /run/drain', 'http://169.254.169.254 answers')
    >>> described(["my-cluster", "leaving"])
    'my-cluster exits with 0'

    Of a URL it names the host, and of a command the program: the rest may be a secret. Raises `ValueError` for another
    text.
    """
    if not isinstance(notice, str):
        if not notice or not all(isinstance(word, str) and word and "\0" not in word for word in notice):
            raise ValueError("a command is a list of words, the first of them a program")
        return f"{notice[0]} exits with 0"
    if notice.startswith(_SCHEMES):
        parts = urlsplit(notice)
        if not parts.hostname or parts.username is not None or not notice.isprintable() or " " in notice:
            raise ValueError("a URL has a host, no user and no blank")
        return f"{parts.scheme}://{parts.hostname} answers"
    if not notice.startswith("/") or not notice.isprintable():
        raise ValueError("expected a path that begins with /, a URL with http:// or https://, or a list of words")
    return f"the file {notice}"
