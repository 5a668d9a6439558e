"""Explain a failed build: known causes, recognised by their traces in the output, and the remedies. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SHOWN_LINES = 12
_BUILDERS_OWN = re.compile(r"Step \d+/\d+ : | ---> |Removing intermediate container ")
_COMMAND = re.compile(r"The command '(.{60}).+' returned", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class _Cause:
    """A pattern in the output or in the engine's error; `help` may use {image_folder} and the pattern's groups."""

    pattern: str
    help: str


# The first match is the cause. A cause that makes others fail comes before them.
_CAUSES = (
    _Cause(
        r"[Nn]o space left on device|disk quota exceeded",
        "The disk is full. The engine keeps images in {image_folder}: `docker system df` shows what takes the room, "
        "`docker image prune` and `docker builder prune` remove what nothing uses",
    ),
    _Cause(
        r"neither python3 nor apt-get",
        "The base image needs Python 3.10 or newer, or apt to install it with: take another --base-image, or put "
        "Python into yours",
    ),
    _Cause(r"Python is older than 3\.10", "Take a --base-image with Python 3.10 or newer"),
    _Cause(
        r"Python has no ensurepip",
        "The base image's Python came without pip's installer (`python3 -m ensurepip` shows it), and there is no apt "
        "to add it: put it into your base image",
    ),
    _Cause(
        r'exec: "/bin/sh"|/bin/sh: no such file',
        "The base image has no shell, which a Dockerfile's RUN needs: take another --base-image",
    ),
    _Cause(
        r"exec format error",
        "The base image is for another kind of processor than this engine's: take another --base-image",
    ),
    _Cause(
        r"CERTIFICATE_VERIFY_FAILED",
        "The image does not trust the package index's certificate; if a proxy of yours signs it, give the proxy's "
        "certificate with --ca-bundle FILE",
    ),
    _Cause(
        r"DO NOT MATCH THE HASHES|[Hh]ashes are required",
        "A package's bytes are not those of the lock. A wheel of your own goes into --wheelhouse, another set of "
        "versions into --lock FILE; if you intended neither, somebody changed the package: do not install it",
    ),
    _Cause(
        r"No matching distribution found for (?P<package>\S+)",
        "There is no wheel of {package} for the base image's Python and processor: put one into --wheelhouse, or take "
        "a --base-image with another Python",
    ),
    _Cause(
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Temporary failure resolving"
        r"|Read timed out|Network is unreachable|Max retries exceeded",
        "The network cannot be reached from a build. Check the engine's DNS and proxy; or put every wheel that the "
        "lock names into --wheelhouse, and use a --base-image that has Python: such a build needs no network",
    ),
)


def explain(lines: Sequence[str], error: str, *, image_folder: str) -> str:
    """Return the message for a failed build: the engine's error, the cause if it is known, and the last lines.

    >>> print(explain(["Step 1/2 : RUN x", "x: No space left on device"], "returned 1", image_folder="/var/lib"))
    ... # doctest: +ELLIPSIS
    the image cannot be built: returned 1. The disk is full. The engine keeps images in /var/lib...
      x: No space left on device
    """
    # The engine repeats the whole RUN command in its error, here a script of many lines.
    error = _COMMAND.sub(r"The command '\1...' returned", error.strip())
    # The builder repeats the Dockerfile, whose own messages would match the patterns below.
    output = [_COLOUR.sub("", line).rstrip() for line in lines if not _BUILDERS_OWN.match(line)]
    message = f"the image cannot be built: {error}"
    text = "\n".join([*output, error])
    for cause in _CAUSES:
        if match := re.search(cause.pattern, text):
            message += ". " + cause.help.format(image_folder=image_folder, **match.groupdict())
            break
    return "\n".join([message, *(f"  {line}" for line in output[-_SHOWN_LINES:] if line)])
