"""Draws a grid of line charts as SVG: the efficiency over the hosts, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, GAP, TOP, LEFT = 380, 250, 70, 60, 60
COLOURS = ("#dc2626", "#d97706", "#6b7280", "#2563eb", "#047857")


@dataclass(frozen=True)
class Panel:
    """One chart: a title, a line of (hosts, efficiency) for each name, and a published point with its label, if any."""

    title: str
    lines: dict[str, list[tuple[int, float]]]
    published: tuple[int, float, str] | None = None


def draw(panels: Sequence[Panel], columns: int = 2) -> str:
    """Return the panels as one SVG document, row by row; all have the same lines."""
    rows = -(-len(panels) // columns)
    width = LEFT + columns * (WIDTH + GAP)
    height = TOP + rows * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(list(panels[0].lines)),
    ]
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        parts.append(f'<g transform="translate({LEFT + column * (WIDTH + GAP)},{TOP + row * (HEIGHT + GAP)})">')
        parts += [*_axes(panel), *_lines(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for index, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x = LEFT + index * 150
        parts.append(f'<line x1="{x}" y1="18" x2="{x + 24}" y2="18" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 30}" y="22">{escape(name)}</text>')
    return parts


def _axes(panel: Panel) -> list[str]:
    parts = [f'<text x="{WIDTH / 2}" y="-10" text-anchor="middle" font-weight="bold">{escape(panel.title)}</text>']
    for percent in range(0, 101, 20):
        y = _y(percent / 100)
        parts.append(f'<line x1="0" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="-8" y="{y + 4}" text-anchor="end">{percent} %</text>')
    hosts = [x for x, _ in next(iter(panel.lines.values()))]
    for tick in hosts:
        x = _x(tick, hosts)
        parts.append(f'<line x1="{x}" y1="{HEIGHT}" x2="{x}" y2="{HEIGHT + 4}" stroke="#9ca3af"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT + 18}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 36}" text-anchor="middle">hosts of 8 GPUs</text>')
    return parts


def _lines(panel: Panel) -> list[str]:
    parts = []
    hosts = [x for x, _ in next(iter(panel.lines.values()))]
    for points, colour in zip(panel.lines.values(), COLOURS, strict=False):
        path = " ".join(f"{_x(x, hosts)},{_y(y)}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    if panel.published is not None:
        x, y, label = panel.published
        center = f'cx="{_x(x, hosts)}" cy="{_y(y)}"'
        parts.append(f'<circle {center} r="5" fill="none" stroke="black" stroke-width="2"/>')
        parts.append(f'<text x="{_x(x, hosts)}" y="{_y(y) + 20}" text-anchor="middle">{escape(label)}</text>')
    return parts


def _x(hosts: int, all_hosts: Sequence[int]) -> float:
    first, last = math.log2(all_hosts[0]), math.log2(all_hosts[-1])
    return round(WIDTH * (0.04 + 0.92 * (math.log2(hosts) - first) / (last - first)), 1)


def _y(efficiency: float) -> float:
    return round(HEIGHT * (1 - efficiency), 1)
