"""The agreement of a job's ranks on the call of `should_stop` at which all of them stop: its rule, and its file. Pure.

    [1] supervisors    write ASKED into the word of their host's file; from then on ranks wait in their next call
    [2] supervisors    read how many calls their ranks have made, and report the most
    [3] coordinator    chooses the call behind the most of all hosts
    [4] supervisors    write that call into the word: ranks that make it return True, and those before it False

No rank waits for another one: while ranks wait, only supervisors talk. So a rank that is ahead may wait here while the
others wait for it in a collective. The file has numbers of 8 bytes: the word, and the calls of each rank. A rank writes
its number before it reads the word, and a supervisor the word before it reads the numbers, so one of them sees the
other's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

# Words of the file; greater ones are the call at which ranks stop.
RUN, ASKED = 0, -1
# Beyond any job's ranks: a script may set RANK to anything.
MOST_RANKS = 1 << 16
_NUMBER = struct.Struct("<q")


def answer(word: int, calls: int) -> bool | None:
    """Return the answer of `should_stop` in a rank that has now made so many calls; None while it waits.

    >>> answer(RUN, 7), answer(ASKED, 7), answer(9, 8), answer(9, 9), answer(9, 10)
    (False, None, False, True, True)
    """
    return None if word == ASKED else 0 < word <= calls


def chosen(most: Iterable[int]) -> int:
    """Return the call at which all ranks stop, of the most calls of each host; 0 for a script that never calls.

    >>> chosen([0, 12, 10]), chosen([0, 0])
    (13, 0)
    """
    calls = max(most, default=0)
    return calls + 1 if calls else 0


def path_of(fifo: str) -> str:
    """Return the path of a host's file, which is next to the FIFO for events: ranks need no variable for it."""
    return f"{fifo}.stop"


def make(path: str, ranks: int) -> None:
    """Make the file of a host for the ranks of a job, in a folder that only its user can open. Raises `OSError`."""
    # A supervisor that was killed has left its own. Real zeros: a full disk must fail here, and not in a training.
    Path(path).unlink(missing_ok=True)
    Path(path).write_bytes(bytes(_NUMBER.size * (1 + ranks)))


def write(descriptor: int, value: int, rank: int | None = None) -> None:
    """Write the number of calls of a rank, or the word. Raises `OSError`."""
    os.pwrite(descriptor, _NUMBER.pack(value), 0 if rank is None else _NUMBER.size * (1 + rank))


def read(descriptor: int) -> int:
    """Return the word. Raises `OSError`."""
    return int(_NUMBER.unpack(os.pread(descriptor, _NUMBER.size, 0))[0])


def exchange(path: str, word: int | None = None) -> int:
    """Write the word of a host's file, if one is given, and return the most calls of its ranks; 0 without a file."""
    try:
        with Path(path).open("r+b", buffering=0) as file:
            if word is not None:
                write(file.fileno(), word)
            text = os.pread(file.fileno(), _NUMBER.size * MOST_RANKS, _NUMBER.size)
    except OSError:
        return 0
    return max((number for (number,) in _NUMBER.iter_unpack(text[: len(text) // 8 * 8])), default=0)
