"""The order of the examples. The seed and the batch sizes decide it; the number of ranks does not. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from herringbone_parallel.core.recipes.large_batch import aggregation_for


def permutation(count: int, seed: int) -> list[int]:
    """Return the numbers below `count` in an order that torch's generator draws from the seed."""
    import torch  # imported late: other frameworks' examples run without torch, and pass `shuffled`

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def shuffled(count: int, seed: int) -> list[int]:
    """Return the numbers below `count` in an order that NumPy draws from the seed."""
    return np.random.default_rng(seed).permutation(count).tolist()


@dataclass(frozen=True)
class Order:
    """The shuffled examples of an epoch, as steps of `global_batch` examples in parts of `rank_batch`.

        order = Order(len(data), global_batch=64, rank_batch=8, ranks=4, seed=1)
        for parts in order.epoch(0, rank=2):        # one step: the parts that this rank computes, one after the other
            ...

    Examples that do not fill a step are left out. They differ between epochs.
    """

    examples: int
    global_batch: int
    rank_batch: int
    ranks: int
    seed: int
    shuffled: Callable[[int, int], list[int]] = permutation

    def __post_init__(self) -> None:
        self.parts_per_step  # noqa: B018  raises when the batch sizes do not divide
        if self.examples < self.global_batch:
            raise ValueError(f"{self.examples} examples do not fill a global batch of {self.global_batch}: add data")

    @property
    def parts_per_step(self) -> int:
        """Number of backward passes of a rank per step: the job's `aggregation_frequency`."""
        return aggregation_for(self.global_batch, rank_batch=self.rank_batch, ranks=self.ranks)

    @property
    def steps_per_epoch(self) -> int:
        return self.examples // self.global_batch

    def epoch(self, number: int, *, rank: int) -> list[list[list[int]]]:
        """Return the numbers of this rank's examples, as [step][part][example]."""
        numbers = self.shuffled(self.examples, 1000 * self.seed + number)
        size = self.rank_batch
        parts = [numbers[first : first + size] for first in range(0, self.steps_per_epoch * self.global_batch, size)]
        count = self.global_batch // size
        # Ranks take every n-th part, so that a step has the same examples on any number of ranks.
        return [parts[step * count : (step + 1) * count][rank :: self.ranks] for step in range(self.steps_per_epoch)]
