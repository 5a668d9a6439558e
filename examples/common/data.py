"""The error that all readers of data raise."""

from __future__ import annotations


class DataError(ValueError):
    """Data in another format than the example documents. The message names the file, and the line, entry or field."""
