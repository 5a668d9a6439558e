"""Shorten texts for people."""

from __future__ import annotations

ELLIPSIS = "…"
# The text of a value that is not known.
NONE = "-"


def shortened(text: str, width: int) -> str:
    """Return a text without its middle, if it is longer than `width`: its beginning and end tell names apart.

    >>> shortened("train-2026-11-22-12-29-26-475", 16)
    'train-20…-26-475'
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + ELLIPSIS + text[len(text) - end :]
