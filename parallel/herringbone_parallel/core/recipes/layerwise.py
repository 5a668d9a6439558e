"""What LARS and LAMB may be told, and which layers they treat alike; the same for every framework. Pure."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError

# What shifts or scales, by the names that Keras gives it; one of several dimensions would pass for a matrix.
_VECTORS = ("bias", "beta", "gamma")


def require_lars(*, rate: float, momentum: float, weight_decay: float, trust: float) -> None:
    """Raise `ParallelError` for settings that LARS cannot have."""
    if not rate >= 0 or not 0 <= momentum < 1 or not weight_decay >= 0 or not trust > 0:
        raise ParallelError(
            f"LARS with a learning rate of {rate}, momentum {momentum}, weight decay {weight_decay} and trust {trust}:"
            " learning rate and weight decay are at least 0, momentum lies in [0, 1), trust is above 0"
        )


def require_lamb(*, rate: float, betas: tuple[float, float], epsilon: float, weight_decay: float) -> None:
    """Raise `ParallelError` for settings that LAMB cannot have."""
    if not rate >= 0 or not all(0 <= beta < 1 for beta in betas) or not epsilon > 0 or not weight_decay >= 0:
        raise ParallelError(
            f"LAMB with a learning rate of {rate}, betas {betas}, epsilon {epsilon} and weight decay {weight_decay}:"
            " learning rate and weight decay are at least 0, betas lie in [0, 1), epsilon is above 0"
        )


def is_matrix(dimensions: int, name: str = "") -> bool:
    """Say whether a weight has decay and a step in proportion to itself: a matrix, and not what shifts or scales.

    >>> is_matrix(2), is_matrix(1), is_matrix(2, "query/bias")     # attention's bias has one of its own for each head
    (True, False, False)
    """
    return dimensions > 1 and name.removesuffix(":0").rsplit("/", 1)[-1] not in _VECTORS
