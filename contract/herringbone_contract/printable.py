"""Show text that somebody else chose, such as a file's name: no control character reaches a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` with control characters, and bytes that are no UTF-8, as escapes that can be read.

    >>> printable("weights\x1b[2J\n")
    'weights\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
