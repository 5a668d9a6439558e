"""Make and check the names of tuning jobs and of their trials, with SageMaker's rules. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from herringbone_contract.errors import JobNameError

# SageMaker's limit, lower than that of training jobs: the name of a trial begins with that of its tuning job.
MAX_CHARS = 32
_PATTERN = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


def default_tuning_name(base: str, now: datetime) -> str:
    """Return `base` followed by the time to the second, as AWS's SDK does. A long base is cut, the time never is.

    >>> default_tuning_name("pytorch-training-of-digits", datetime(2026, 11, 21, 9, 5, 7))
    'pytorch-training-o-261121-090507'
    """
    stamp = now.strftime("-%y%m%d-%H%M%S")
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-")[: MAX_CHARS - len(stamp)].strip("-")
    return (cleaned or "tuning") + stamp


def check_tuning_name(name: str) -> str:
    """Return the name unchanged. Raises `JobNameError` for a name that SageMaker would refuse."""
    if not isinstance(name, str) or not _PATTERN.fullmatch(name) or len(name) > MAX_CHARS:
        raise JobNameError(
            f"tuning job name {name!r}: a name has 1 to {MAX_CHARS} letters, digits and hyphens, and begins and ends "
            "with a letter or a digit"
        )
    return name


def trial_job_name(tuning: str, number: int) -> str:
    """Return the name of a trial's job, a pure function: a search that was killed finds the job by it.

    >>> trial_job_name("digits", 0)
    'digits-001'
    """
    return f"{tuning}-{number + 1:03d}"
