"""What is wrong with data, in words."""

from __future__ import annotations


class DataError(ValueError):
    """Data that is not in the stated form; the message has the file, and the line, place or field in it."""
