"""From keys to paths below a bucket's folder, and back. Pure.

    key                    path                           why
    data/50%.csv, .a/b     data/50%.csv, .a/b             a key is the path of its file, whoever makes the file
    U+F7FF                 the byte FF                    of a name that is no UTF-8, U+F780 to U+F7FF stand for a byte
    a//b, a/, ../x         .herringbone/keys/=a%2F%2Fb    no file has such a path, so the object lies apart
    a, with a/b            .herringbone/keys/=a           a file cannot have the name of a folder

Each path belongs to one key. Jobs open files by their paths, so they see no object that lies apart.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from herringbone.s3.front.refusals import S3Error
from herringbone.s3.front.removal import APART, OWN

MAX_KEY_BYTES = 1024
NO_PATH = (
    "no file has such a path: a part between slashes is empty, '.', '..', longer than 255 bytes or a name of the "
    "service's own (.herringbone, .*.partial)"
)
_MAX_PART_BYTES = 255
_PIECE = 200
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_BYTES = re.compile("[\uf780-\uf7ff]")
# Python shows a byte FF, which is no UTF-8, as U+DCFF; no key can have that.
_PYTHONS = {0xDC80 + byte: 0xF780 + byte for byte in range(128)}
_KEYS = {key: python for python, key in _PYTHONS.items()}


def check_bucket_name(name: str) -> str:
    """Return a bucket's name. Raises `S3Error` for one that S3 would not take."""
    if _BUCKET.fullmatch(name) is None or ".." in name:
        raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
    return name


def check_key(key: str) -> str:
    """Return a key. Raises `S3Error` for one that S3 would not take."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise S3Error("InvalidURI", "The key is not UTF-8.") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", "Your key is empty or too long.")
    return key


def path_of(key: str) -> str | None:
    """Return the path of the file that is a key's object; None for a key whose object always lies apart.

    >>> path_of("data/50%.csv"), path_of("../../etc/passwd"), path_of("a//b")
    ('data/50%.csv', None, None)
    """
    path = key
    if _BYTES.search(key):
        # Bytes that together are UTF-8 belong to the key that has the character.
        path = key.translate(_KEYS).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        if key_of(path) != key:
            return None
    parts = path.split("/")
    if parts[0] == OWN or any(part in ("", ".", "..") or is_own(part) or "\0" in part for part in parts):
        return None
    return None if any(len(part.encode("utf-8", "surrogateescape")) > _MAX_PART_BYTES for part in parts) else path


def key_of(path: str) -> str:
    """Return the key of a file by its path, as Python shows the path.

    >>> key_of("data/50%.csv"), ascii(key_of("caf\\udce9"))
    ('data/50%.csv', "'caf\\\\uf7e9'")
    """
    path = _BYTES.sub(lambda match: "".join(chr(0xF700 + byte) for byte in match[0].encode()), path)
    return path.translate(_PYTHONS)


def path_apart(key: str) -> str:
    """Return the path of a key's object where that lies apart: long names are divided among folders.

    >>> path_apart("a//b"), path_apart("..")
    ('.herringbone/keys/=a%2F%2Fb', '.herringbone/keys/=..')
    """
    text = quote(key, safe="", errors="replace")
    *pieces, last = [text[begin : begin + _PIECE] for begin in range(0, len(text), _PIECE)]
    return "/".join([APART, *(f"+{piece}" for piece in pieces), f"={last}"])


def key_apart(path: str) -> str | None:
    """Return the key of a file by its path below the folder of those that lie apart; None for another's file.

    >>> key_apart("=a%2F%2Fb")
    'a//b'
    """
    key = unquote("".join(piece[1:] for piece in path.split("/")), errors="replace")
    return key if key and path_apart(key) == f"{APART}/{path}" else None


def is_own(name: str) -> bool:
    """Report whether a file is one that is still being written, whose name is hidden and ends so; no object's."""
    return name.startswith(".") and name.endswith(".partial")
