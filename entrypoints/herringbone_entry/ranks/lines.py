"""Turn a rank's output from pipe chunks into prefixed whole lines, byte for byte.

Bytes are never decoded, so a character that a pipe read cuts stays whole in its line. Chunks are handled whole: a
line costs no Python code of its own.

A progress bar redraws one line with carriage returns. Each redraw would be a line in a log, so a reader gets at most
one state per second, marked as one that the next line replaces, and the last state as an ordinary line.
"""

from __future__ import annotations

from collections import deque

from herringbone_contract.constants import LIVE_MARK

# A longer line is cut: otherwise a program that prints no newline would fill the supervisor's memory.
MAX_LINE_BYTES = 8 * 1024 * 1024
BAR_INTERVAL_SECONDS = 1.0
# A program may write one state in several pieces, and half of a number is another number.
_PIECES_SECONDS = 0.05
_TAIL_LINES = 60
_TAIL_LINE_BYTES = 1_000


class Tail:
    """The last lines of a rank, for its failure record."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def add(self, lines: bytes) -> None:
        """Take whole lines; only the last few are looked at."""
        # Search backwards for the newlines: a chunk may hold thousands of lines, and most are dropped.
        start = len(lines)
        for _ in range(_TAIL_LINES + 1):
            start = lines.rfind(b"\n", 0, start)
            if start < 0:
                break
        self._lines.extend(line[:_TAIL_LINE_BYTES] for line in lines[start + 1 :].splitlines())

    def text(self) -> tuple[str, ...]:
        """Return the lines as text."""
        return tuple(line.decode("utf-8", "replace") for line in self._lines)


class LineStream:
    """Prefixes the lines of one stream of one rank.

    >>> stream = LineStream(b"[algo-1:0] ", Tail())
    >>> stream.feed(b"loss 0.5\\n  step", now=0.0)
    b'[algo-1:0] loss 0.5\\n'
    >>> stream.close()
    b'[algo-1:0]   step\\n'

    `now` is in seconds, from any start. While `bar` is true, call `tick` about once a second.
    """

    def __init__(self, prefix: bytes, tail: Tail) -> None:
        self._prefix = prefix
        self._tail = tail
        # The line that has no newline yet, in the parts that arrived; joining them each time would be quadratic.
        self._parts: list[bytes] = []
        self._size = 0
        # The last state of the progress bar that was printed.
        self._shown = b""
        self._shown_at = self._fed_at = float("-inf")
        self.bar = False

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take the bytes of one read, and return the prefixed lines that they complete."""
        # Only output with carriage returns pays for a look at each line.
        if self.bar or b"\r" in chunk:
            return self._feed_bar(chunk, now)
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            self._keep(chunk)
            return self._overflow()
        # All complete lines of the chunk in one piece, however many they are.
        lines = b"".join([*self._parts, chunk[:cut]])
        self._reset(chunk[cut:])
        return self._whole(lines)

    def tick(self, now: float) -> bytes:
        """Return a progress bar's state as a marked line, if none was printed for a second."""
        if not self.bar or now - self._shown_at < BAR_INTERVAL_SECONDS or now - self._fed_at < _PIECES_SECONDS:
            return b""
        return self._show(_last_state(b"".join(self._parts)), now)

    def close(self) -> bytes:
        """Return the last line, which had no newline."""
        rest = b"".join(self._parts)
        self._reset(b"")
        if self.bar:
            self.bar = False
            rest = _last_state(rest) or self._shown
        return self._whole(rest + b"\n") if rest else b""

    def _feed_bar(self, chunk: bytes, now: float) -> bytes:
        self._fed_at = now
        *whole, rest = b"".join([*self._parts, chunk]).split(b"\n")
        out = []
        for line in whole:
            # \r\n is the line ending of some programs, and no redraw.
            body, ending = (line[:-1], b"\r\n") if line.endswith(b"\r") else (line, b"\n")
            state = _last_state(body) if b"\r" in body else body
            if self.bar and not state:
                # The program has wiped its bar. The last state that was shown is the one to keep.
                state = self._shown
            if state or b"\r" not in body:
                out.append(self._whole(state + ending))
            # The newline ends the bar; the next bar begins with nothing printed.
            self._shown, self.bar = b"", False
        # A trailing carriage return may be the first half of a line ending, so it does not end a state before a `tick`.
        states, _, current = rest[:-1].rpartition(b"\r")
        current += rest[-1:]
        is_redrawn, self.bar = b"\r" in rest[:-1], b"\r" in rest
        if is_redrawn and now - self._shown_at >= BAR_INTERVAL_SECONDS:
            out.append(self._show(_last_state(states), now))
        # Keep a carriage return in front, so that the next chunk continues a bar and not a plain line.
        self._reset(b"\r" + current if is_redrawn else rest)
        out.append(self._overflow())
        return b"".join(out)

    def _show(self, state: bytes, now: float) -> bytes:
        # A wiped or unchanged bar is no news for a log.
        if not state.strip() or state == self._shown:
            return b""
        self._shown, self._shown_at = state, now
        # Not part of the tail: sixty states of a bar would leave no room for the lines before it.
        return self._prefix + LIVE_MARK + state + b"\n"

    def _whole(self, lines: bytes) -> bytes:
        self._tail.add(lines)
        # One pass over the bytes in C; a loop over lines would cost Python time for each line.
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def _reset(self, part: bytes) -> None:
        self._parts = [part] if part else []
        self._size = len(part)

    def _overflow(self) -> bytes:
        if self._size <= MAX_LINE_BYTES:
            return b""
        rest = b"".join(self._parts)
        self._reset(b"")
        return self._whole(rest + b"\n")


def _last_state(text: bytes) -> bytes:
    """Return the text that a terminal would still show after redraws: the last one that is not blank.

    A program prints blanks to wipe its bar before a message; they are no state of the bar.
    """
    return next((part for part in reversed(text.split(b"\r")) if part.strip()), b"")
