"""Refuse texts of the user that no request, script, argument vector or log can carry as they are. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from herringbone_contract.errors import HyperparameterError, OptionError, UsageError

# Control characters end lines of requests and scripts, or reach a terminal; a half of a surrogate pair is no text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MAX_NAME_BYTES = 255
# Less than the 4,096 of Linux, so that there is room for the names of a job's files.
_MAX_PATH_BYTES = 3_800
_OF_THE_KERNEL = ("/dev", "/proc", "/sys")
# What is not the kernel's alone.
_OWN_FILES = re.compile(r"/dev/shm(/|$)|(?!/(dev|proc|sys)(/|$))")  # noqa: S108 - no file is made


def check_texts(where: str, value: object, *, error: type[UsageError] = OptionError, secret: bool = False) -> None:
    """Raise `error` when a text in `value`, keys included, has a control character; `where` names the value.

    The message does not quote a `secret`.

    >>> check_texts("role", ["a", {"b": "c\\nd"}])
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: role[1].b: 'c\\nd' has a control character or a line break; remove it
    """
    try:
        _check(where, value, error=error, secret=secret)
    except RecursionError:
        raise error(f"{where}: it is nested too deeply") from None


def check_name(where: str, value: str) -> str:
    """Return a name, such as that of an image or an instance type. Raises `OptionError` if it looks like an option.

    >>> check_name("image_uri", "-oProxyCommand=x")
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: image_uri: '-oProxyCommand=x' begins with a hyphen or has a blank; ...
    """
    check_texts(where, value)
    if value.startswith("-") or " " in value:
        raise OptionError(f"{where}: {value!r} begins with a hyphen or has a blank; write a name without them")
    return value


def path_text(name: str, value: str | os.PathLike[str] | None) -> str | None:
    """Return a path or a name as text, None for None. Raises `OptionError` for any other value."""
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise OptionError(f"{name}: expected a path or name, got {value!r}")
    text = os.fspath(value)
    check_texts(name, text)
    return check_path(name, text)


def check_path(where: str, path: str, *, error: type[UsageError] = OptionError) -> str:
    """Return a path. Raises `error` for one that no file system has, and for one among the kernel's own files.

    >>> check_path("output_path", "/x" * 1_900)
    '/x/x...'
    >>> check_path("output_path", "/x" * 2_000)
    Traceback (most recent call last):
    herringbone_contract.errors.OptionError: output_path: '/x/x...'... has more than 3800 bytes; shorten it
    >>> check_path("output_path", "/dev/shm/results")
    '/dev/shm/results'
    """
    what = ""
    if any(len(os.fsencode(part)) > _MAX_NAME_BYTES for part in path.split("/")):
        what = f"a name of more than {_MAX_NAME_BYTES}"
    elif len(os.fsencode(path)) > _MAX_PATH_BYTES:
        what = f"more than {_MAX_PATH_BYTES}"
    if what:
        raise error(f"{where}: {path[:80]!r}... has {what} bytes; shorten it")
    # Two slashes stay two at the beginning of a path.
    folder = f"/{path.lstrip('/').partition('/')[0]}" if path.startswith("/") else ""
    # /proc/self/cwd is a folder of the user.
    if folder in _OF_THE_KERNEL and not _OWN_FILES.match(os.path.realpath(path).replace("//", "/")):
        raise error(
            f"{where}: {path} is below {folder}, where the kernel shows devices and its own state, no files; give "
            "another folder (/dev/shm, in memory, can be used)"
        )
    return path


def mapping_of(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a dict whose keys are names, an empty one for None. Raises `HyperparameterError` for any other value."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise HyperparameterError(f"{name}: expected a dict with names as keys, got {value!r}")
    return value


def _check(where: str, value: object, *, error: type[UsageError], secret: bool) -> None:
    if isinstance(value, str):
        if _CONTROL.search(value):
            shown = "the text" if secret else repr(value)
            raise error(f"{where}: {shown} has a control character or a line break; remove it")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check(f"{where}, key", key, error=error, secret=secret)
            _check(f"{where}.{key}", item, error=error, secret=secret)
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            _check(f"{where}[{position}]", item, error=error, secret=secret)
