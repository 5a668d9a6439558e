"""Parse the text that faulthandler writes about a process. Pure.

    Thread 0x00007f12a4ffd6c0 (most recent call first):
      File "/opt/ml/code/train.py", line 12 in step
      File "/opt/ml/code/train.py", line 30 in <module>

The names of files and functions are a user's, so the text may hold anything; each result is bounded.
Source: CPython's Python/traceback.c.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from herringbone_contract.masking import printable

MAX_THREADS = 64
MAX_FRAMES = 100  # faulthandler's own limit
_MAX_NAME_CHARS = 300
_IMPORT_SYSTEM = "<frozen importlib"
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]{1,16}(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}) in (.*)')


class Frame(NamedTuple):
    """One call: the file's path, the line, and the function's name."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """One thread's frames, innermost first; `name` is empty before Python 3.14."""

    name: str
    frames: tuple[Frame, ...]


def parse_dump(text: str) -> tuple[Thread, ...]:
    """Return the threads of a dump, the main thread first.

    >>> parse_dump('Current thread 0x01 (most recent call first):\\n  File "train.py", line 12 in step\\n')
    (Thread(name='', frames=(Frame(file='train.py', line=12, function='step'),)),)

    Lines that are neither a thread nor a frame are skipped, and so are the frames of Python's import system.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if match := _THREAD.fullmatch(line):
            threads.append((_name(match[1] or ""), []))
        elif threads and (match := _FRAME.fullmatch(line)):
            frames = threads[-1][1]
            if len(frames) < MAX_FRAMES and not match[1].startswith(_IMPORT_SYSTEM):
                frames.append(Frame(_name(match[1]), int(match[2]), _name(match[3])))
    # Python lists its threads newest first, so the main thread comes last.
    kept = threads[::-1][:MAX_THREADS]
    return tuple(Thread(name, tuple(frames)) for name, frames in kept)


def _name(text: str) -> str:
    return printable(text[:_MAX_NAME_CHARS])
