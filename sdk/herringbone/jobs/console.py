"""Writes a job's log to a terminal or a pipe."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from herringbone.jobs.logs import LogLine

# Six colours that are easy to tell apart and readable on black and on white. A rank keeps its colour.
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
# All but tab and carriage return. Not `isprintable`, which also escapes blanks of other scripts.
_CONTROL = re.compile("[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f-\x9f]")


class Console:
    """Writes log lines as `[algo-1:0] text`; on a terminal the prefix has its rank's colour.

    >>> Console(sys.stdout).show(lines)      # doctest: +SKIP

    A terminal gets the script's control characters as escapes that can be read: they could change its title, its
    clipboard or lines above. Tabs, and the carriage returns of progress bars, stay. A pipe or a file gets all bytes.
    `timestamps` puts the time of each line, in this machine's zone, in front of it.
    """

    def __init__(self, stream: TextIO | None = None, *, timestamps: bool = False) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._timestamps = timestamps
        self._terminal = self._stream.isatty()
        self._colours: dict[str, str] = {}

    def show(self, lines: list[LogLine]) -> None:
        if lines:
            self._write("".join(f"{self._prefix(line)} {self._shown(line.text)}\n" for line in lines))

    @functools.cached_property
    def _coloured(self) -> bool:
        # A pipe shows no colours unless the user forces them, and must not pay for the import.
        if not self._terminal and not os.environ.get("FORCE_COLOR"):
            return False
        from rich.console import Console as Terminal

        terminal = Terminal(file=self._stream, force_jupyter=False)
        return terminal.color_system is not None and not terminal.no_color

    def say(self, text: str) -> None:
        """Write one line of Herringbone itself."""
        self._write(f"{text}\n")

    def _shown(self, text: str) -> str:
        if not self._terminal or _CONTROL.search(text) is None:
            return text
        return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)

    def _prefix(self, line: LogLine) -> str:
        moment = f"{line.time.astimezone().isoformat(timespec='milliseconds')} " if self._timestamps else ""
        if not self._coloured:
            return moment + line.prefix
        from click import style

        if line.rank is None:
            return moment + style(line.prefix, dim=True)
        colour = self._colours.setdefault(line.prefix, _COLOURS[len(self._colours) % len(_COLOURS)])
        return moment + style(line.prefix, fg=colour)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            # An ASCII terminal must not end the job: characters that it lacks are escaped.
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()
