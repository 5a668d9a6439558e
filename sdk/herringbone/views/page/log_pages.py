"""Pages of a job's log, the newest lines first, however long the log is: files are read backwards in blocks.

A page's `before` says where the next older page begins, and `after` where lines begin that came later: the offset in
each host's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from herringbone.records.logs import LogLine, parse_line
from herringbone_contract.masking import printable

_BLOCK_BYTES = 1 << 18
_NO_TIME = datetime.fromtimestamp(0, timezone.utc)
# A page reads at most this much, so that a filter without a match in a log of gigabytes answers at once.
MAX_SCAN_BYTES = 1 << 24
MAX_LINES = 2_000
MAX_LINE_CHARS = 4_000
# ECMA-48: control sequences (colours, movements), texts for the terminal such as titles, and two-byte sequences.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[]PX^_].*?(?:\x1b\\|\x07|$)|\x1b[ -/]*[0-~]", re.DOTALL
)


def shown_text(text: str) -> str:
    r"""Return a line as a page shows it: without escape sequences, and at most 4,000 characters.

    >>> shown_text("\x1b[31mred\x1b[0m \x07")
    'red \\x07'
    """
    cut = text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]} ... ({len(text)} characters)"
    return printable(_ESCAPES.sub("", cut), "\t")


@dataclass(frozen=True, slots=True)
class Choice:
    """The lines of a page: of one host, of one rank, and with a text in any case; None and "" mean any."""

    host: str | None = None
    rank: int | None = None
    text: str = ""

    def takes(self, line: LogLine) -> bool:
        """Report whether a line is among them."""
        return (
            not line.live
            and self.host in (None, line.host)
            and self.rank in (None, line.rank)
            and self.text.lower() in line.text.lower()
        )


def newest_lines(
    files: Mapping[str, Path],
    choice: Choice,
    *,
    before: Mapping[str, int] | None = None,
    count: int = 200,
    over: bool = True,
    scan: int = MAX_SCAN_BYTES,
    block: int = _BLOCK_BYTES,
) -> dict[str, Any]:
    """Return the newest `count` lines before the offsets `before`, or before the ends, as a page.

    >>> newest_lines({}, Choice())
    {'lines': [], 'before': {}, 'after': {}, 'more': False}

    `files` maps each host to its log. Unless the job is `over`, a last line without its end stays for `later_lines`.
    `more` says that there are older lines, which may match or not. The files are read in blocks of `block` bytes.
    """
    share = max(1, scan // max(1, len(files)))
    found: list[_Found] = []
    start, reached = {}, {}
    for host, path in files.items():
        end = _size(path) if before is None else min(_size(path), before.get(host, 0))
        start[host] = end if over or before is not None else _last_line_end(path, end, block)
        lines = _lines_backwards(path, start[host], max(0, start[host] - share), block)
        own, reached[host] = _backwards(lines, host, start[host], choice, count)
        found += own
    # By time between hosts. The sort is stable, so lines of one host and time keep their order.
    found.sort(key=lambda item: item.line.time)
    kept, left = (found[-count:], found[:-count]) if count else ([], found)
    for host in files:
        if any(item.host == host for item in left):
            # Lines of this host that found no room on the page begin the next one.
            reached[host] = min((item.offset for item in kept if item.host == host), default=start[host])
    return {
        "lines": [_shown(item.line) for item in kept],
        "before": reached,
        "after": start,
        "more": any(offset > 0 for offset in reached.values()),
    }


def later_lines(
    files: Mapping[str, Path], choice: Choice, *, after: Mapping[str, int], scan: int = MAX_SCAN_BYTES
) -> dict[str, Any]:
    """Return the lines that were written since the offsets `after`; of very many, only the last ones.

    `skipped` says that lines between are left out. A last line that is not complete comes with the next call.
    """
    found: list[LogLine] = []
    reached: dict[str, int] = {}
    skipped = False
    for host, path in files.items():
        size = _size(path)
        begin = min(size, after.get(host, 0))
        share = max(1, scan // max(1, len(files)))
        content = _read(path, max(begin, size - share), size)
        if size - begin > share:
            skipped = True
            content = content.partition(b"\n")[2]
        complete, newline, _ = content.rpartition(b"\n")
        reached[host] = size - (len(content) - len(complete) - len(newline))
        if newline:
            found += _parsed(complete.split(b"\n"), host)
    chosen = sorted((line for line in found if choice.takes(line)), key=lambda line: line.time)
    return {
        "lines": [_shown(line) for line in chosen[-MAX_LINES:]],
        "after": reached,
        "skipped": skipped or len(chosen) > MAX_LINES,
    }


def page_of(lines: Sequence[LogLine], choice: Choice, count: int) -> dict[str, Any]:
    """Return a page of the last `count` of some lines: of a log that is not in files, as a service's."""
    chosen = [line for line in lines if choice.takes(line)]
    shown = [_shown(line) for line in chosen[-count:]]
    return {"lines": shown, "before": {}, "after": {}, "more": False}


class _Found(NamedTuple):
    line: LogLine
    host: str
    offset: int


def _backwards(
    lines: Iterator[tuple[int, bytes]], host: str, end: int, choice: Choice, count: int
) -> tuple[list[_Found], int]:
    """Return the last `count` chosen lines before the offset `end`, and the offset that was reached."""
    found: list[_Found] = []
    reached = end
    for offset, raw in lines:
        if len(found) >= count:
            break
        reached = offset
        [line] = _parsed([raw], host)
        if line.time == _NO_TIME and found:
            # A line without a time stays next to the line after it.
            line = replace(line, time=found[-1].line.time)
        if choice.takes(line):
            found.append(_Found(line, host, offset))
    return found[::-1], reached


def _lines_backwards(path: Path, end: int, floor: int, block: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line before the offset `end` with its offset, the last one first, until the offset `floor`."""
    # The end of a line that begins in an earlier block, with its newline.
    tail = b""
    any_yielded = False
    while end > floor:
        begin = max(0, end - block)
        buffer = _read(path, begin, end) + tail
        cut = buffer.find(b"\n") + 1 if begin else 0
        if begin and cut in (0, len(buffer)):
            # No line begins in this block.
            tail, end = buffer, begin
            continue
        tail, lines = buffer[:cut], buffer[cut:].split(b"\n")
        offset = begin + len(buffer)
        if lines[-1] == b"":
            lines.pop()
        else:
            # The last line of the file has no newline.
            offset += 1
        for line in reversed(lines):
            offset -= len(line) + 1
            any_yielded = True
            yield offset, line
        end = begin
    if tail and not any_yielded:
        # A line that is longer than a page may read: its end alone.
        yield end, tail


def _last_line_end(path: Path, size: int, block: int) -> int:
    """Return the offset behind the last newline before `size`; `size` where there is none near."""
    end = _read(path, max(0, size - block), size)
    newline = end.rfind(b"\n")
    return size if newline < 0 else size - len(end) + newline + 1


def _parsed(raws: Sequence[bytes], host: str) -> list[LogLine]:
    lines: list[LogLine] = []
    for raw in raws:
        # Cut before it is decoded: a line may have any length.
        cut = raw[: 8 * MAX_LINE_CHARS]
        lines.append(parse_line(cut, host, lines[-1].time) if lines else parse_line(cut, host))
    return lines


def _shown(line: LogLine) -> dict[str, Any]:
    return {
        "t": round(line.time.timestamp(), 3) if line.time != _NO_TIME else None,
        "host": printable(line.host),
        "rank": line.rank,
        "text": shown_text(line.text),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, begin: int, end: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)
    except OSError:
        return b""


def sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """Return the size of each file, 0 for one that does not exist."""
    return {host: _size(path) for host, path in files.items()}
