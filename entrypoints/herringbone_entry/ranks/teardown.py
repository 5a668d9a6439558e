"""Does what Python does before its teardown, while it can still be reported."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import sys
from collections.abc import Callable


def run_exit_functions(show: Callable[[BaseException], None]) -> None:
    """Do what Python does before its teardown: wait for threads, run the functions of `atexit`, flush open files.

    A thread of a library that asks for Python's lock in the teardown is ended there (Python before 3.14), which C++
    answers with SIGABRT: with torch, about one rank in some thousands. By then everything has happened. `show` gets the
    error of an end that was interrupted.
    """
    # Python calls both once more, and both then find nothing to do.
    for end in (getattr(sys.modules.get("threading"), "_shutdown", None), atexit._run_exitfuncs):
        try:
            if end is not None:
                end()
        except BaseException as error:  # noqa: BLE001 - as Python does, which then goes on
            show(error)
    # By their types: `isinstance` would ask objects of the script, which may answer with anything.
    kinds = {io.IOBase}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    for file in gc.get_objects():
        if type(file) in kinds:
            with contextlib.suppress(Exception):
                file.flush()
    flush()


def flush() -> None:
    """Write out what the program has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
