"""Make and check job names: SageMaker's pattern, by default `<base>-YYYY-MM-DD-HH-MM-SS-mmm`."""

from __future__ import annotations

import re
from datetime import datetime

from herringbone_contract.constants import JOB_NAME_PATTERN
from herringbone_contract.errors import JobNameError

MAX_CHARS = 63


def default_job_name(base: str, now: datetime) -> str:
    """Return `base` followed by the time to the millisecond. A long base is cut, the time never is.

    >>> default_job_name("pytorch", datetime(2026, 11, 21, 9, 5, 7, 42_000))
    'pytorch-2026-11-21-09-05-07-042'
    """
    stamp = now.strftime("-%Y-%m-%d-%H-%M-%S-") + f"{now.microsecond // 1000:03d}"
    # A name must not start with a hyphen, hence the strip.
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", base)[: MAX_CHARS - len(stamp)].strip("-")
    return (cleaned or "job") + stamp


def check_job_name(name: str) -> str:
    """Return the name unchanged. Raises `JobNameError` for a name that the service would refuse."""
    if not isinstance(name, str) or not JOB_NAME_PATTERN.fullmatch(name) or len(name) > MAX_CHARS:
        # The same letters, as far as a name may have them.
        proposal = re.sub(r"[^A-Za-z0-9]+", "-", name[:MAX_CHARS]).strip("-") if isinstance(name, str) else ""
        hint = f"; did you mean {proposal!r}?" if proposal else ""
        raise JobNameError(
            f"job name {name!r}: use 1 to {MAX_CHARS} letters, digits and hyphens, starting and ending with no hyphen"
            f"{hint}"
        )
    return name
