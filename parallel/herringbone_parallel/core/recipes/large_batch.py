"""Scales the settings of a recipe that was tuned for a smaller global batch."""

from __future__ import annotations

import math

from herringbone_contract.errors import ParallelError

RULES = ("linear", "sqrt")


def scale_learning_rate(rate: float, *, batch: int, base_batch: int, rule: str = "linear") -> float:
    """Return the learning rate for `batch`, when `rate` is right for `base_batch`.

    >>> scale_learning_rate(0.1, batch=8192, base_batch=256)
    3.2
    >>> scale_learning_rate(0.001, batch=1024, base_batch=256, rule="sqrt")
    0.002

    Sources: Goyal et al., arXiv 1706.02677 (linear); You et al., arXiv 1904.00962 (square root, for LAMB).
    """
    ratio = _ratio(batch, base_batch)
    if rule not in RULES:
        raise ParallelError(f"rule {rule!r}: a learning rate is scaled by one of {', '.join(RULES)}")
    return rate * (ratio if rule == "linear" else math.sqrt(ratio))


def scale_batch_norm_momentum(momentum: float, *, batch: int, base_batch: int) -> float:
    """Return BatchNorm's momentum for fewer, larger steps, as torch defines it: the weight of the newest batch.

    >>> round(scale_batch_norm_momentum(0.1, batch=512, base_batch=256), 6)
    0.19

    The running average then covers as many examples as with `base_batch`.
    """
    if not 0 < momentum < 1:
        raise ParallelError(f"momentum {momentum!r}: BatchNorm's momentum lies between 0 and 1")
    # One large step must forget as much as the small steps that it replaces: (1 - m)^ratio of the average remains.
    return float(1 - (1 - momentum) ** _ratio(batch, base_batch))


def aggregation_for(global_batch: int, *, rank_batch: int, ranks: int) -> int:
    """Return the number of backwards of `rank_batch` examples on each rank that make one step of the global batch.

    >>> aggregation_for(256, rank_batch=32, ranks=4)
    2

    Raises `ParallelError` when the global batch is no multiple of what all ranks process at once.
    """
    batch = rank_batch * ranks
    if min(global_batch, rank_batch, ranks) < 1:
        raise ParallelError(f"a global batch of {global_batch} from {ranks} ranks of {rank_batch}: all are at least 1")
    if global_batch % batch:
        raise ParallelError(
            f"a global batch of {global_batch} cannot be made of {ranks} ranks x {rank_batch} examples = {batch}:"
            " it must be a multiple of that. Change the global batch, the batch per rank or the number of ranks"
        )
    return global_batch // batch


def _ratio(batch: int, base_batch: int) -> float:
    if batch < 1 or base_batch < 1:
        raise ParallelError(f"a batch of {batch} for a base of {base_batch}: both are at least 1")
    return batch / base_batch
