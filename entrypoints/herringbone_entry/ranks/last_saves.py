"""Wait for the checkpoints that a rank still writes when its script has ended; imported only by such a rank."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NoReturn


def finish(
    writer: ModuleType, show: Callable[[BaseException], None], leave: Callable[[int, BaseException], NoReturn]
) -> None:
    """Wait until `writer`, our library's module for checkpoints, has written all; leave with the error of a save.

    Python's shutdown would wait for the saves, too, but then an error no longer changes the exit code.
    """
    try:
        writer.finalize()
    except BaseException as error:  # noqa: BLE001 - whatever the thread has raised
        show(error)
        leave(1, error)
