"""Computes the sizes and the number of microbatches."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError


def microbatch_size(extent: int, microbatches: int, *, what: str, axis: int = 0) -> int:
    """Return the number of samples of each microbatch; `what` names the batch in the error message.

    >>> microbatch_size(64, 4, what="images")
    16

    Raises `ParallelError` when `microbatches` does not divide `extent`, naming both.
    """
    size, rest = divmod(extent, microbatches)
    if rest or size == 0:
        lower = extent - rest
        choices = f"{lower} or {lower + microbatches}" if lower else f"{microbatches}"
        raise ParallelError(
            f"{microbatches} microbatches do not divide a batch of {extent} ({what}, axis {axis})."
            f" Use a batch size of {choices}, drop_last=True in the DataLoader, or another `microbatches`."
        )
    return size


def most_microbatches(extent: int, most: int) -> int:
    """Return the largest number of microbatches, up to `most`, that divides a batch.

    >>> most_microbatches(6, 4), most_microbatches(5, 4)
    (3, 1)
    """
    return next(number for number in range(min(most, extent), 0, -1) if extent % number == 0)
