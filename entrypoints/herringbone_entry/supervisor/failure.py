"""Make the record of a failure, from a rank's report, from its log, or from an error of our own; and write it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from herringbone_contract.constants import MAX_FAILURE_CHARS
from herringbone_contract.failure import Failure, Frame, summary
from herringbone_contract.failure_text import words_of
from herringbone_contract.files import write_whole
from herringbone_contract.paths import INSIDE, Paths
from herringbone_contract.safe_tree import read_file

_LOG_TAIL_LINES = 20
# A file that did not fit has filled its disk but for a few blocks.
_FULL_DISK_BYTES = 8 << 20
_FULL_DISK_REMEDY = (
    "remove files there, or run the job with more room: HERRINGBONE_HOME, output_path, checkpoint_s3_uri"
)
# As torch, numpy and C++ streams say that a write failed, without the system's reason.
_FAILED_WRITE = re.compile(
    r"PytorchStreamWriter|inline_container|unexpected pos|requested and \d+ written|iostream error"
)
# faulthandler prints such a line for each frame of a process that a signal killed, innermost first.
_CRASH_FRAME = r'  File "(?P<file>.+)", line (?P<line>\d{1,9}) in (?P<function>.+)'
_CRASHED_THREAD = "Current thread 0x"
_CRASH = "Fatal Python error: "
_CRASH_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}
_DUMP_STARTS = ("Traceback (most recent call last):", _CRASH)
_OUR_FILES = (str(Path(__file__).parents[1]), "<frozen runpy>", "<string>")


def of_rank(
    host: str, rank: int, code: int | None, *, report: dict[str, Any] | None, tail: Sequence[str], folder: str
) -> Failure:
    """Return the failure of a rank that ended with `code` (None: not known yet).

    `report` is the rank's own report. Without it, because a signal killed the rank, the frames come from the crash dump
    in its log, if there is one. `folder` holds the user's code.
    """
    # The report is better than the log: it has the exception's type and its full text.
    report = report or {}
    reported = (Frame(**{**frame, "source": printable(frame["source"])}) for frame in report.get("frames", ()))
    frames = tuple(reported) or crash_frames(tail, folder)
    return Failure(
        host=host,
        rank=rank,
        exit_code=code or 1,
        exception=report.get("exception", ""),
        message=printable(report.get("message", "")),
        frames=frames,
        log_tail=tuple(_before_dump(tail) if frames else tail)[-_LOG_TAIL_LINES:],
    )


def crash_code(lines: Sequence[str]) -> int | None:
    """Return the exit code of a process whose log ends with a crash dump, else None.

    >>> crash_code(["Fatal Python error: Segmentation fault"])
    139
    """
    crashes = [line.removeprefix(_CRASH) for line in lines if line.startswith(_CRASH)]
    number = _CRASH_SIGNALS.get(crashes[-1]) if crashes else None
    return None if number is None else 128 + number


def of_error(host: str | None, error: BaseException) -> Failure:
    """Return the failure of the host itself, which no rank caused."""
    return Failure(host=host, exit_code=1, exception=type(error).__name__, message=printable(str(error)))


def printable(text: str) -> str:
    r"""Return a text that UTF-8 can carry: Python writes bytes of a file's name that are no text as lone surrogates.

    >>> printable("a \udc80 b")
    'a \\udc80 b'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def crash_frames(lines: Sequence[str], folder: str) -> tuple[Frame, ...]:
    """Return the frames, outermost first, of the thread that crashed, from the text that faulthandler printed.

    Only those in `folder`, with their files relative to it, or all of them if none is there.

    >>> crash_frames(['Current thread 0x00 (most recent call first):', '  File "a.py", line 3 in f'], "/code")
    (Frame(file='a.py', line=3, function='f', source=''),)
    """
    import linecache

    dump = dropwhile(lambda line: not line.startswith(_CRASHED_THREAD), lines)
    frames = []
    # faulthandler prints the crashed thread's frames directly after its head line.
    for line in islice(dump, 1, None):
        match = re.fullmatch(_CRASH_FRAME, line)
        if match is None:
            break
        # Frames of our wrapper would only distract the user.
        if not match["file"].startswith(_OUR_FILES):
            number = int(match["line"])
            source = linecache.getline(match["file"], number).strip()
            frames.append(Frame(match["file"], number, match["function"], source))
    code = os.path.realpath(folder) + os.sep
    paths = [(frame, os.path.realpath(frame.file)) for frame in frames]
    users = [frame._replace(file=path.removeprefix(code)) for frame, path in paths if path.startswith(code)]
    return tuple(reversed(users or frames))


def free_bytes(paths: Paths) -> dict[str, int]:
    """Return the free bytes of the folders that a script writes to; folders of one disk count once.

    A disk without free inodes takes no file: it has -1.
    """
    free: dict[int, tuple[str, int]] = {}
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as the script's own `tempfile` takes it
    for folder in (paths.checkpoints, paths.model, paths.output_data, temporary, "/dev/shm"):  # noqa: S108
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            size = -1 if disk.f_files and not disk.f_ffree else disk.f_bavail * disk.f_frsize
            free.setdefault(Path(folder).stat().st_dev, (str(folder), size))
    return dict(free.values())


def file_limit() -> int | None:
    """Return the most bytes that a file of this process, and of its ranks, may have; None without a limit."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def with_full_disk(failure: Failure, free: Mapping[str, int], most_bytes: int | None = None) -> Failure:
    """Return the failure of a write with its cause in the message: a full disk, or a limit of files. Pure.

    >>> failure = Failure(exception="RuntimeError", message="[enforce fail at inline_container.cc:671]")
    >>> with_full_disk(failure, {"/opt/ml/checkpoints": 0}).message.partition("; remove")[0]
    '[enforce fail at inline_container.cc:671] (the disk of /opt/ml/checkpoints is full: 0 MB are free'

    `free` are the free bytes by folder, `most_bytes` is `file_limit`.
    """
    text = "\n".join((failure.message, *failure.log_tail))
    is_full, is_vague = "No space left on device" in text, _FAILED_WRITE.search(text) is not None
    full = [
        f"{folder} is full: {'no inode is' if size < 0 else f'{size / 1e6:.0f} MB are'} free"
        for folder, size in free.items()
        if size < _FULL_DISK_BYTES
    ]
    if full and (is_full or is_vague):
        reason = f"the disk of {', and that of '.join(full)}; {_FULL_DISK_REMEDY}"
    elif most_bytes is not None and (is_vague or "File too large" in text):
        reason = f"a file may have {most_bytes / 1e6:.0f} MB at most, by `ulimit -f` where the job was started"
    else:
        return failure
    return failure._replace(message=f"{failure.message} ({reason})" if failure.message else reason)


def own_words(paths: Paths) -> str:
    """Return what the script wrote about its failure, "" without the file; the script may have put a FIFO there."""
    try:
        # A character has up to four bytes.
        return words_of(read_file(paths.base, str(INSIDE.failure), limit=4 * MAX_FAILURE_CHARS))
    except OSError:
        return ""


def write(paths: Paths, failure: Failure) -> bool:
    """Write the failure to the contract's two files; a message that the user's program wrote there stays.

    Returns whether there is a record: a full disk may be the failure itself.
    """
    is_recorded = False
    with contextlib.suppress(OSError):
        Path(paths.output).mkdir(parents=True, exist_ok=True)
        write_whole(paths.failure_record, failure.to_json().encode(), mode=0o666)
        is_recorded = True
    # Mode x: a file of the user's own stays.
    with contextlib.suppress(OSError), Path(paths.failure).open("x", encoding="utf-8") as file:
        file.write(summary(failure))
    return is_recorded


def _before_dump(tail: Sequence[str]) -> Sequence[str]:
    """Drop the traceback or crash dump at the end of a log: the record has its frames already."""
    starts = [index for index, line in enumerate(tail) if line.startswith(_DUMP_STARTS)]
    return tail[: starts[-1]] if starts else tail
