"""The job's folders for checkpoints and for the model."""

from __future__ import annotations

import os
from pathlib import Path

from herringbone_contract.constants import BASE_VARIABLE
from herringbone_contract.errors import ParallelError
from herringbone_contract.paths import Paths

# A supervisor sets both for each rank.
CHECKPOINT_VARIABLE = "SM_CHECKPOINT_DIR"
MODEL_VARIABLE = "SM_MODEL_DIR"


def checkpoint_dir() -> Path:
    """Return the folder whose files outlive an attempt, and the job if it has a `checkpoint_s3_uri`.

    >>> checkpoint_dir().name
    'checkpoints'

    An image of AWS has no such variable, and the folder of the container contract is right there.
    """
    return Path(os.environ.get(CHECKPOINT_VARIABLE) or _tree().checkpoints)


def training_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder that a `Training` was given, or the job's. Raises `ParallelError` where there is neither."""
    found = folder or os.environ.get(CHECKPOINT_VARIABLE)
    if not found:
        raise ParallelError(f"Training(folder=...) is missing: {CHECKPOINT_VARIABLE} is set in a job only")
    return Path(found)


def model_dir() -> Path:
    """Return the folder whose files are packed as the model when the job completes.

    >>> model_dir().name
    'model'
    """
    return Path(os.environ.get(MODEL_VARIABLE) or _tree().model)


def _tree() -> Paths:
    base = os.environ.get(BASE_VARIABLE)
    return Paths(Path(base)) if base else Paths()
