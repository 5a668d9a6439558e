"""`sagemaker.utils`: names of jobs."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from functools import partial
from uuid import uuid4

from sagemaker import _absent


def sagemaker_timestamp() -> str:
    """Return the time in the form of a job's name, to the millisecond."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d-%H-%M-%S-%f")[:-3]


def sagemaker_short_timestamp() -> str:
    """Return the time in a short form, to the minute."""
    return time.strftime("%y%m%d-%H%M", time.gmtime())


def name_from_base(base: str, max_length: int = 63, short: bool = False) -> str:
    """Return a new name that begins with `base`.

    >>> name_from_base("digits-of-the-first-days", max_length=20, short=True)[:9]
    'digits-of'
    """
    stamp = sagemaker_short_timestamp() if short else sagemaker_timestamp()
    return f"{base[: max_length - len(stamp) - 1]}-{stamp}"


def unique_name_from_base(base: str, max_length: int = 63) -> str:
    """Return a new name that begins with `base`, and that no second call in the same second returns."""
    end = f"-{int(time.time())}-{uuid4().hex[:4]}"
    return f"{base[: max_length - len(end)]}{end}"


def base_name_from_image(image: str, default_base_name: str | None = None) -> str:
    """Return the name of an image's repository.

    >>> base_name_from_image("763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.1.0-cpu-py310")
    'pytorch-training'
    """
    found = re.match(r"(?:.*/)?([^:/@]+)", image)
    return found.group(1) if found else default_base_name or "base_name"


def base_from_name(name: str) -> str:
    """Return what `name_from_base` was given.

    >>> base_from_name("digits-2026-11-21-09-05-07-042")
    'digits'
    """
    return re.sub(r"-(\d{4}(-\d{2}){5}-\d{3}|\d{6}-\d{4})$", "", name)


__getattr__ = partial(_absent.absent, __name__)
