"""`python -m herringbone_entry.framed_input COMMAND ARGUMENT ...`: run a command whose standard input comes in frames.

A frame has 4 bytes of size, the most significant one first, and as many bytes; size 0 is the end of the input. Clients
use it in pods, where they cannot close the input. When a client goes away before that end, the command is terminated.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
from typing import IO

_SIZE = struct.Struct(">I")
# The codes of a shell for a program that is not there, and for one that cannot be run.
_NOT_FOUND_CODE, _NOT_EXECUTABLE_CODE = 127, 126


def main() -> None:
    """Exit with the command's exit code, as a shell counts."""
    try:
        process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
    except OSError as error:
        print(f"herringbone: {sys.argv[1]}: {error.strerror}", file=sys.stderr)
        sys.exit(_NOT_FOUND_CODE if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE_CODE)
    threading.Thread(target=_feed, args=(process,), daemon=True).start()
    code = process.wait()
    sys.stderr.flush()
    # Not `sys.exit`: the thread may hold the input's lock.
    os._exit(128 - code if code < 0 else code)


def _feed(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    if not copy_frames(sys.stdin.buffer, process.stdin):
        # Before its input ends, which it would take for the whole.
        process.terminate()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def copy_frames(source: IO[bytes], target: IO[bytes]) -> bool:
    """Copy the frames' content, and report whether the end came; the target may close its end before."""
    is_open = True
    while len(head := source.read(_SIZE.size)) == _SIZE.size:
        (size,) = _SIZE.unpack(head)
        if not size:
            return True
        data = source.read(size)
        if len(data) == size and is_open:
            # The client goes on sending to a command that reads no more.
            try:
                target.write(data)
                target.flush()
            except BrokenPipeError:
                is_open = False
    return False


if __name__ == "__main__":
    main()
