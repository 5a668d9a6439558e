"""`sagemaker_training.mapping`: hyperparameters as arguments of a command and as variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone_contract.hyperparameters import arguments
from herringbone_entry.ranks.environment import encode


def to_cmd_args(values: Mapping[str, Any]) -> list[str]:
    """Return the words that pass hyperparameters to a script.

    >>> to_cmd_args({"epochs": 3, "b": True})
    ['-b', 'True', '--epochs', '3']
    """
    return arguments(values)


def to_env_vars(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as variables SM_*.

    >>> to_env_vars({"hosts": ["algo-1"], "model_dir": "/opt/ml/model"})
    {'SM_HOSTS': '["algo-1"]', 'SM_MODEL_DIR': '/opt/ml/model'}
    """
    return {f"SM_{name.upper()}": encode(value) for name, value in values.items()}
