"""Write a command line for the login shell of another machine, which may be sh, csh or fish. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# Between single quotes, csh ends a word at a newline and reads "!" as history; fish makes one of two backslashes.
_SPECIAL = frozenset("\n\r!\\")
# Options of ssh that keep settings of ~/.ssh/config for people who log in away from ours: RemoteCommand runs another
# program than the one that is named, and LocalCommand may print.
PLAIN_SSH = ("-o", "RemoteCommand=none", "-o", "PermitLocalCommand=no")
_DECODE = 'eval "exec $(printf %b "$0")"'


def remote_line(words: Sequence[str]) -> str:
    """Return the line with which a login shell runs a program with exactly these words.

    >>> remote_line(["echo", "a b"]), remote_line(["a!"]).partition(" -c ")[0]
    ("echo 'a b'", 'sh')

    Words that such a shell would change are for sh alone, and travel in octal digits.
    """
    line = shlex.join(words)
    if _SPECIAL.isdisjoint(line):
        return line
    octal = "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\0{byte:03o}"
        for byte in line.encode("utf-8", "surrogateescape")
    )
    return shlex.join(["sh", "-c", _DECODE, octal])
