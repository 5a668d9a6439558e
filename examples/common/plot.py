"""The pictures of studies, as SVG: one column per variant, with a dot for each seed and a bar for the mean."""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT, LEFT = 640, 300, 70
COLOURS = ("#6b7280", "#dc2626", "#047857")


def draw(columns: dict[str, list[float]], title: str, *, least: int) -> str:
    """Return the picture as SVG. Values are in percent; values below `least` are drawn on the axis."""
    column = (WIDTH - LEFT - 20) / len(columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 90}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT + 90}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-weight="bold">{escape(title)}</text>',
    ]
    for percent in range(least, 101, 10):
        y = _y(percent, least)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for number, (name, values) in enumerate(columns.items()):
        colour = COLOURS[number % len(COLOURS)]
        middle = round(LEFT + column * (number + 0.5), 1)
        mean = sum(values) / len(values)
        y = _y(mean, least)
        parts.append(
            f'<line x1="{middle - 40}" y1="{y}" x2="{middle + 40}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        )
        for index, value in enumerate(values):
            # Seeds are drawn next to each other, because equal values would hide each other.
            x = middle + 14 * (index - (len(values) - 1) / 2)
            parts.append(f'<circle cx="{x}" cy="{_y(value, least)}" r="4" fill="{colour}" fill-opacity="0.6"/>')
        parts.append(f'<text x="{middle}" y="{HEIGHT + 62}" text-anchor="middle">{escape(name)}</text>')
        parts.append(f'<text x="{middle}" y="{HEIGHT + 78}" text-anchor="middle">{mean:.1f} %</text>')
    return "\n".join([*parts, "</svg>", ""])


def _y(percent: float, least: int) -> float:
    return round(40 + HEIGHT * (100 - max(percent, least)) / (100 - least), 1)
