"""Checks the settings of LARS and LAMB, and selects the weights to which they apply layer by layer."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError

# Keras's names of weights that shift or scale. Some have several dimensions and would pass for matrices.
_VECTORS = ("bias", "beta", "gamma")


def require_lars(*, rate: float, momentum: float, weight_decay: float, trust: float) -> None:
    """Raise `ParallelError` for settings that LARS does not accept."""
    if not rate >= 0 or not 0 <= momentum < 1 or not weight_decay >= 0 or not trust > 0:
        raise ParallelError(
            f"LARS with a learning rate of {rate}, momentum {momentum}, weight decay {weight_decay} and trust {trust}:"
            " learning rate and weight decay are at least 0, momentum lies in [0, 1), trust is above 0"
        )


def require_lamb(*, rate: float, betas: tuple[float, float], epsilon: float, weight_decay: float) -> None:
    """Raise `ParallelError` for settings that LAMB does not accept."""
    if not rate >= 0 or not all(0 <= beta < 1 for beta in betas) or not epsilon > 0 or not weight_decay >= 0:
        raise ParallelError(
            f"LAMB with a learning rate of {rate}, betas {betas}, epsilon {epsilon} and weight decay {weight_decay}:"
            " learning rate and weight decay are at least 0, betas lie in [0, 1), epsilon is above 0"
        )


def is_matrix(dimensions: int, name: str = "") -> bool:
    """Return True for a matrix, False for a weight that shifts or scales.

    Matrices have weight decay, and steps in proportion to their norm.

    >>> is_matrix(2), is_matrix(1), is_matrix(2, "query/bias")     # attention has a bias per head
    (True, False, False)
    """
    return dimensions > 1 and name.removesuffix(":0").rsplit("/", 1)[-1] not in _VECTORS
