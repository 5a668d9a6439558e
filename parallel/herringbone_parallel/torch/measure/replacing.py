"""Replace attributes of modules and classes for the length of a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MISSING = object()


@contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Give a module or class other attributes; those that were missing are removed afterwards.

    with replaced(torch, save=write_nothing):
        run_the_script()
    """
    before = {name: vars(target).get(name, _MISSING) for name in attributes}
    for name, value in attributes.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, value)


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""
