"""`sagemaker.exceptions`: what a job that failed raises, under the names of SDK v2."""

from __future__ import annotations

from functools import partial

from herringbone import JobFailedError
from sagemaker import _absent

UnexpectedStatusException = JobFailedError


class CapacityError(JobFailedError):
    """AWS has no machines free: raised by nothing here, for scripts that would catch it."""


__getattr__ = partial(_absent.absent, __name__)
