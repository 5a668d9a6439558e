"""From keys to paths below a bucket's folder, and back. Pure.

    key                path                  why
    data/a.csv         data/a.csv            most keys are paths already
    ../x               %2E%2E/x              no part is `.` or `..`, and none is hidden: those are our own
    a//b, a/           a/%/b, a/%            an empty part is `%`
    a, with a/b        a%, with a/b          a file cannot have the name of a folder

Each path belongs to one key: a `%` of a key is `%25`.
"""

from __future__ import annotations

import re

from herringbone.s3.front.refusals import S3Error

MAX_KEY_BYTES = 1024
_MAX_PART_BYTES = 254
_ENCODED = re.compile(r"[%\\\x00-\x1f\x7f]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
# Ends the name of a file whose plain name is a folder.
FOLDER_EXISTS = "%"


def check_bucket_name(name: str) -> str:
    """Return a bucket's name. Raises `S3Error` for one that S3 would not take."""
    if _BUCKET.fullmatch(name) is None or ".." in name:
        raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
    return name


def path_of(key: str) -> str:
    """Return the path of a key's file.

    >>> path_of("data/a.csv"), path_of("../../etc/passwd"), path_of("a//b%")
    ('data/a.csv', '%2E%2E/%2E%2E/etc/passwd', 'a/%/b%25')

    Raises `S3Error` for a key that is too long, or has a part that no file system takes.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise S3Error("InvalidURI", "The key is not UTF-8.") from None
    parts = [_encode(part) for part in key.split("/")]
    if not key or size > MAX_KEY_BYTES or any(len(part.encode()) > _MAX_PART_BYTES for part in parts):
        raise S3Error("KeyTooLongError", "Your key is empty or too long, or a part between its slashes is.")
    return "/".join(parts)


def key_part(name: str) -> str:
    """Return the part of a key that a folder's or a file's name stands for.

    >>> key_part("%2E%2E"), key_part("%"), key_part("%%"), key_part("a%")
    ('..', '', '', 'a')
    """
    plain = name[:-1] if name.endswith(FOLDER_EXISTS) else name
    if plain == FOLDER_EXISTS:
        # An empty part, next to a folder of an empty part.
        return ""
    return re.sub(r"%([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), plain)


def is_own(name: str) -> bool:
    """Report whether a name in the folder is the front's own, and no object's."""
    return name.startswith(".")


def _encode(part: str) -> str:
    if not part:
        return FOLDER_EXISTS
    encoded = _ENCODED.sub(lambda match: f"%{ord(match[0]):02X}", part)
    if encoded.startswith("."):
        return "%2E%2E" if encoded == ".." else f"%2E{encoded[1:]}"
    return encoded
