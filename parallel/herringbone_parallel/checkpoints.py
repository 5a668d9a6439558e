"""The job's folder of checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from herringbone_contract.constants import BASE_VARIABLE
from herringbone_contract.paths import Paths

# A supervisor sets it for each rank. An image of AWS has no such variable, and `/opt/ml/checkpoints` is right there.
CHECKPOINT_VARIABLE = "SM_CHECKPOINT_DIR"


def checkpoint_dir() -> Path:
    """Return the folder whose files outlive an attempt, and the job if it has a `checkpoint_s3_uri`.

    >>> checkpoint_dir().name
    'checkpoints'
    """
    folder = os.environ.get(CHECKPOINT_VARIABLE)
    if folder:
        return Path(folder)
    base = os.environ.get(BASE_VARIABLE)
    return Path((Paths(Path(base)) if base else Paths()).checkpoints)
