"""Small charts and progress bars in HTML, readable on light and dark pages. Pure: numbers in, inline SVG out.

Colours are the page's own text colour, and one blue that has contrast on white and on black.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from herringbone_contract.masking import printable

ACCENT = "#3d85e0"
_WIDTH, _HEIGHT, _MARGIN = 260, 48, 2
_MOST_POINTS = 260


def escaped(text: str) -> str:
    """Return a text of a job as HTML that shows it: tags, and control characters, are shown as they are written.

    >>> escaped("a<b>\\x1b[2J")
    'a&lt;b&gt;\\\\x1b[2J'
    """
    return html.escape(printable(text, keep="\n\t"))


def chart(label: str, values: Sequence[float], steps: Sequence[float] = ()) -> str:
    """Return the course of a metric as inline SVG; "" without two finite values.

    >>> chart("loss", [2.0, 1.0]).count("<path")
    1
    >>> chart("loss", [float("nan")])
    ''

    `steps` are the places of the values on the x axis; without them the values are evenly spaced. Of many values
    every n-th is drawn. A value that is not finite is a gap.
    """
    stride = 1 + (len(values) - 1) // _MOST_POINTS if values else 1
    xs = list(steps[::stride]) if len(steps) == len(values) else [float(at) for at in range(0, len(values), stride)]
    points = [(x, float(y)) for x, y in zip(xs, values[::stride], strict=True)]
    finite = [(x, y) for x, y in points if math.isfinite(y) and math.isfinite(x)]
    if len(finite) < 2:
        return ""
    across, up = _scale([x for x, _ in finite], _WIDTH), _scale([y for _, y in finite], _HEIGHT)
    drawn, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        drawn.append(f"{pen}{across(x):.1f},{_HEIGHT - up(y):.1f}")
        pen = "L"
    title = escaped(f"{label}: {len(values)} values, the last is {values[-1]:.4g}")
    return (
        f'<svg role="img" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{title}</title>'
        f'<path d="{"".join(drawn)}" fill="none" stroke="{ACCENT}" stroke-width="1.5"/></svg>'
    )


def _scale(numbers: Sequence[float], room: int) -> Callable[[float], float]:
    """Return the map of numbers onto the room between two margins; numbers that are all equal go to the middle."""
    # Halves: two huge numbers may have a difference that is not finite.
    least, span = min(numbers) / 2, max(numbers) / 2 - min(numbers) / 2

    def place(number: float) -> float:
        part = (number / 2 - least) / span if span > 0 else 0.5
        return _MARGIN + part * (room - 2 * _MARGIN)

    return place


def progress_bar(fraction: float) -> str:
    """Return a progress bar, with its percentage for those who cannot see it.

    >>> 'width:25%' in progress_bar(0.25)
    True
    """
    percent = f"{100 * max(0.0, min(1.0, fraction)):.3g}"
    return (
        f'<span role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100" style="'
        "display:inline-block;width:160px;height:10px;border:1px solid currentColor;border-radius:5px;"
        f'vertical-align:middle;overflow:hidden"><span style="display:block;width:{percent}%;height:100%;'
        f'background:{ACCENT}"></span></span> {percent} %'
    )
