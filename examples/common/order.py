"""Who takes which examples: decided by the seed and the batches, never by the number of ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from herringbone_parallel.recipes import aggregation_for


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
        shuffled = torch.randperm(self.examples, generator=torch.Generator().manual_seed(1000 * self.seed + number))
        steps = shuffled[: self.steps_per_epoch * self.global_batch].view(self.steps_per_epoch, -1, self.rank_batch)
        return steps[:, rank :: self.ranks].tolist()
