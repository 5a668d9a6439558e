"""Texts for cells of a terminal: a job's own text is made safe, and numbers are made short. Pure."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator

from herringbone.system.texts import ELLIPSIS, NONE
from herringbone.system.times import shown_span
from herringbone_contract.masking import printable

_DONE, _OPEN = "━", "╌"
# Whole numbers between these are written in full.
_FEWEST_WHOLE, _MOST_WHOLE = 1e3, 1e7
# Eight heights of a bar. A value that is no number leaves its place blank.
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_MARKS = 3
# Differences below this are none: 0 times infinity is no height.
_MOST_SCALE = 1e300


def fitted(text: str, width: int) -> str:
    """Return one line of at most `width` columns of a terminal.

    >>> fitted("loss\\x1b[2J 0.5", 40), fitted("日本語", 5), fitted("abcdef", 4)
    ('loss\\\\x1b[2J 0.5', '日本…', 'abc…')

    Control characters, and those that turn the direction of a text, become escapes that can be read.
    """
    # Imported here, as all of rich is: only a terminal needs it.
    from rich.cells import cell_len, set_cell_size

    if width <= 0:
        return ""
    text = printable(text[: _MOST_MARKS * width + width].replace("\t", " "))
    if not text.isascii():
        text = "".join(_without_piles(text))
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def _without_piles(text: str) -> Iterator[str]:
    """Yield letters, each with a few of the marks that combine with it: marks take no column, and may be thousands."""
    num_marks = 0
    for letter in text:
        num_marks = num_marks + 1 if unicodedata.combining(letter) else 0
        if num_marks <= _MOST_MARKS:
            yield letter


def num_columns(text: str) -> int:
    """Return the columns that a text takes on a terminal.

    >>> num_columns("日本 1")
    6
    """
    from rich.cells import cell_len

    return cell_len(text)


def shown_number(value: float | None) -> str:
    """Return a number with four digits, but never less than its whole part; `NONE` for None.

    >>> shown_number(0.00123456), shown_number(123456.7), shown_number(1.5e9), shown_number(None)
    ('0.001235', '123457', '1.5e+09', '-')

    `static/dom.js` writes numbers in the same way.
    """
    if value is None:
        return NONE
    return f"{value:.0f}" if _FEWEST_WHOLE <= abs(value) < _MOST_WHOLE else f"{value:.4g}"


def shown_percent(fraction: float | None) -> str:
    """Return a part as a percentage; `NONE` for None.

    >>> shown_percent(0.873), shown_percent(None)
    ('87 %', '-')
    """
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.0f} %"


def shown_eta(seconds: float | None, late: float | None = None) -> str:
    """Return the time that is left, and how late a job is whose time is over; `NONE` where nothing is known.

    >>> shown_eta(200.4), shown_eta(0.0, late=20.0), shown_eta(None)
    ('3 min 20 s', '20 s late', '-')
    """
    if seconds is None:
        return NONE
    if late is not None and round(late) > 0:
        return f"{shown_eta(late)} late"
    return shown_span(float(round(seconds))).replace(".0 s", " s")


def bar(fraction: float, width: int) -> str:
    """Return a progress bar.

    >>> bar(0.5, 6)
    '━━━╌╌╌'
    """
    done = int(max(0.0, min(1.0, fraction)) * width)
    return _DONE * done + _OPEN * (width - done)


def sparkline(values: list[float], width: int) -> str:
    """Return the course of a metric in one line: the mean of each part, between its least and its greatest value.

    >>> sparkline([8.0, 6.0, 4.0, 2.0, float("nan"), 1.0], 6)
    '█▆▄▂ ▁'
    """
    if not values or width <= 0:
        return ""
    width = min(width, len(values))
    parts = [values[len(values) * index // width : len(values) * (index + 1) // width] for index in range(width)]
    means = [_mean(part) for part in parts]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return ""
    # Halves: two huge numbers may have a difference that is not finite.
    least, most = min(finite) / 2, max(finite) / 2
    scale = (len(_HEIGHTS) - 1) / (most - least) if most > least else 0.0
    return "".join(
        " " if mean is None else _HEIGHTS[min(len(_HEIGHTS) - 1, round((mean / 2 - least) * min(scale, _MOST_SCALE)))]
        for mean in means
    )


def _mean(part: list[float]) -> float | None:
    finite = [value for value in part if math.isfinite(value)]
    # Divided first: the sum of large numbers need not be finite.
    return sum(value / len(finite) for value in finite) if finite else None
