"""Writes a job's log to a terminal or a pipe."""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console as Terminal

# Six colours that are easy to tell apart and readable on black and on white. A rank keeps its colour.
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
# All but tab and carriage return. Not `isprintable`, which also escapes blanks of other scripts.
_CONTROL = re.compile("[\x00-\x08\x0a-\x0c\x0e-\x1f\x7f-\x9f]")


class Line(Protocol):
    """A line of a job's log, as `records.logs` has it."""

    @property
    def rank(self) -> int | None: ...
    @property
    def time(self) -> datetime: ...
    @property
    def text(self) -> str: ...
    @property
    def live(self) -> bool: ...
    @property
    def prefix(self) -> str: ...


class Console:
    """Writes log lines as `[algo-1:0] text`; on a terminal the prefix has its rank's colour.

    >>> Console(sys.stdout).show(lines)      # doctest: +SKIP

    A terminal gets the script's control characters as escapes that can be read: they could change its title, its
    clipboard or lines above. Tabs, and the carriage returns of progress bars, stay. A pipe or a file gets all bytes. A
    progress bar is drawn in place on a terminal and in a notebook; a pipe gets its last state.
    `timestamps` puts the time of each line, in this machine's zone, in front of it.
    """

    # A failure's message is short where the log was shown.
    shows_log = True

    def __init__(self, stream: TextIO | None = None, *, timestamps: bool = False) -> None:
        # A program without a terminal, such as a service, may have no streams at all.
        stream = stream or sys.stdout
        self._stream = io.StringIO() if stream is None or getattr(stream, "closed", False) else stream
        self._timestamps = timestamps
        self._terminal = self._stream.isatty()
        # Its output is no terminal, but a carriage return replaces the line there, too.
        self._notebook = type(self._stream).__module__.startswith("ipykernel.")
        self._colours: dict[str, str] = {}
        # The row of a progress bar's state, without a line break, while it is the last one.
        self._drawn = ""

    def show(self, lines: Sequence[Line]) -> None:
        # Only the newest state of a progress bar in a batch is worth drawing; a pipe gets the bar's last one.
        text = "".join(f"{self._prefix(line)} {self._shown(line.text)}\n" for line in lines if not line.live)
        state = next((line for line in reversed(lines) if line.live), None) if self.redraws else None
        if text:
            self._write(text)
        if state is not None:
            self._draw(state)

    @functools.cached_property
    def redraws(self) -> bool:
        """True for a notebook, and for a terminal that can replace its last row."""
        return self._notebook or (self._terminal and self._rich is not None and not self._rich.is_dumb_terminal)

    @functools.cached_property
    def _coloured(self) -> bool:
        return self._rich is not None and self._rich.color_system is not None and not self._rich.no_color

    @functools.cached_property
    def _rich(self) -> Terminal | None:
        # A pipe shows no colours unless the user forces them, and must not pay for the import.
        if not self._terminal and not os.environ.get("FORCE_COLOR"):
            return None
        from rich.console import Console as RichConsole

        return RichConsole(file=self._stream, force_jupyter=False)

    def _draw(self, line: Line) -> None:
        """Draw the state of a progress bar over the last one, in one row: only the last row can be replaced."""
        text = self._shown(line.text).replace("\t", " ")
        prefix = self._prefix(line)
        if self._rich is not None:
            from rich.cells import cell_len, set_cell_size

            # One column stays free: a cursor behind the last one would wrap.
            room = max(0, self._rich.width - len(self._moment(line) + line.prefix) - 2)
            text = text if cell_len(text) <= room else set_cell_size(text, room)
        self._write(f"{prefix} {text}")
        self._drawn = f"{prefix} {text}"

    def settle(self) -> None:
        """Leave a progress bar that is drawn where it is, so that another stream of the terminal begins a new row."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
            self._drawn = ""

    def look(self, record: Any) -> None:
        """Take the job's row whenever it was read; the log alone does not need it."""

    def note(self, text: str, stderr: Console) -> None:
        """Write a line about the job, between those of its log, to standard error."""
        self.settle()
        stderr.say(text)

    def close(self) -> None:
        """Take leave of a job that is over; nothing is open here."""

    def say(self, text: str) -> None:
        """Write one line of Herringbone itself."""
        self._write(f"{text}\n")

    def _shown(self, text: str) -> str:
        if not self._terminal or _CONTROL.search(text) is None:
            return text
        return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)

    def _prefix(self, line: Line) -> str:
        moment = self._moment(line)
        if not self._coloured:
            return moment + line.prefix
        from click import style

        if line.rank is None:
            return moment + style(line.prefix, dim=True)
        colour = self._colours.setdefault(line.prefix, _COLOURS[len(self._colours) % len(_COLOURS)])
        return moment + style(line.prefix, fg=colour)

    def _moment(self, line: Line) -> str:
        return f"{line.time.astimezone().isoformat(timespec='milliseconds')} " if self._timestamps else ""

    def _write(self, text: str) -> None:
        if self._drawn:
            # Back to the first column, and erase the state of a progress bar; a notebook knows no code to erase.
            blank = "\x1b[2K" if self._terminal else " " * len(self._drawn) + "\r"
            text, self._drawn = f"\r{blank}{text}", ""
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                # An ASCII terminal must not end the job: characters that it lacks are escaped.
                encoding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except OSError as error:
            # The program has closed its descriptors, so nobody reads it.
            if error.errno != errno.EBADF:
                raise
        except ValueError:
            if not getattr(self._stream, "closed", False):
                raise
