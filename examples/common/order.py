"""Who takes which examples: decided by the seed and the batches, never by the number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from herringbone_parallel.core.recipes.large_batch import aggregation_for


def permutation(count: int, seed: int) -> list[int]:
    """Return the numbers below `count` in an order that the seed decides, torch's."""
    import torch  # not above: examples without it bring a permutation of their own

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass(frozen=True)
class Order:
    """The examples of an epoch, shuffled, as steps of a global batch, each made of parts of `rank_batch`.

        order = Order(len(data), global_batch=64, rank_batch=8, ranks=4, seed=1)
        for parts in order.epoch(0, rank=2):        # a step: the parts that this rank computes, one after the other
            ...

    What does not fill a step is left out; it is different in every epoch.
    """

    examples: int
    global_batch: int
    rank_batch: int
    ranks: int
    seed: int
    shuffled: Callable[[int, int], list[int]] = permutation

    def __post_init__(self) -> None:
        self.parts_per_step  # noqa: B018  raises where the batches do not fit
        if self.examples < self.global_batch:
            raise ValueError(f"{self.examples} examples do not fill a global batch of {self.global_batch}: add data")

    @property
    def parts_per_step(self) -> int:
        """How many backwards of a rank make a step: the job's `aggregation_frequency`."""
        return aggregation_for(self.global_batch, rank_batch=self.rank_batch, ranks=self.ranks)

    @property
    def steps_per_epoch(self) -> int:
        return self.examples // self.global_batch

    def epoch(self, number: int, *, rank: int) -> list[list[list[int]]]:
        """Return the examples' numbers: of each step, of each part that this rank takes."""
        numbers = self.shuffled(self.examples, 1000 * self.seed + number)
        size = self.rank_batch
        parts = [numbers[first : first + size] for first in range(0, self.steps_per_epoch * self.global_batch, size)]
        each = self.global_batch // size
        return [parts[step * each : (step + 1) * each][rank :: self.ranks] for step in range(self.steps_per_epoch)]
