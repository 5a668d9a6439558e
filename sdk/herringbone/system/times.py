"""Read and write spans of time and moments as people do. Pure: the moment of "now" is an argument."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_SPAN = re.compile(r"(?=.)(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_UNITS = (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1))


def parse_span(text: str) -> int | None:
    """Return a span such as 90s, 10m, 1h30m or 30d in seconds; None for any other text.

    >>> parse_span("10m"), parse_span("1h30m"), parse_span("soon")
    (600, 5400, None)
    """
    if (match := _SPAN.fullmatch(text)) is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Return the moment that a text means, as an aware time; None for a text that is no moment.

    >>> parse_moment("10m", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)).isoformat()
    '2026-01-31T11:50:00+00:00'

    A moment is a span before `now` (`10m`), a time of ISO 8601 (`2026-01-31`, `2026-01-31T11:50`, with or without a
    zone), or a time of the current day (`11:50`). A time without a zone is one of this machine's zone.
    """
    if (seconds := parse_span(text)) is not None:
        try:
            return datetime.fromtimestamp(now.timestamp() - seconds, timezone.utc)
        except (ValueError, OverflowError):
            return None
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
        text = (
            f"{now.astimezone():%Y-%m-%d}T{text:0>5}"
            if text.count(":") == 1
            else f"{now.astimezone():%Y-%m-%d}T{text:0>8}"
        )
    # Python 3.10 does not know the letter Z for UTC.
    text = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        return None


def shown_span(seconds: float) -> str:
    """Return a span in its two largest units; 0 for a negative one, which clocks of two machines make.

    >>> shown_span(12.34), shown_span(200), shown_span(7500), shown_span(200_000), shown_span(-0.04)
    ('12.3 s', '3 min 20 s', '2 h 5 min', '2 d 7 h', '0.0 s')
    """
    for large, small, large_seconds, small_seconds in _UNITS:
        if seconds >= large_seconds:
            rest = int(seconds % large_seconds // small_seconds)
            return f"{int(seconds // large_seconds)} {large}" + (f" {rest} {small}" if rest else "")
    return f"{max(0.0, seconds):.1f} s"


def shown_ago(seconds: float) -> str:
    """Return how long ago something was, in one unit.

    >>> shown_ago(3), shown_ago(130), shown_ago(90_000)
    ('now', '2 min ago', '1 d ago')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    # Clocks of two machines may differ, so a job may also be from the future.
    return f"{int(seconds)} s ago" if seconds >= 10 else "now"
