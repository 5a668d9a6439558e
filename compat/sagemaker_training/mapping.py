"""`sagemaker_training.mapping`: hyperparameters as arguments of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone_entry.ranks.environment import arguments


def to_cmd_args(values: Mapping[str, Any]) -> list[str]:
    """Return the words that pass hyperparameters to a script.

    >>> to_cmd_args({"epochs": 3, "b": True})
    ['-b', 'True', '--epochs', '3']
    """
    return arguments(values)
