"""The option `keep_global_batch`: a step uses the same samples of the order, on whichever number of ranks.

    the order of an epoch     |---- step 0: B samples ----|---- step 1 ----|-- the last step: fewer --|
    a rank of M               every M-th of them, from its own number on: one batch, and one backward

A rank's batch grows as the ranks become fewer, instead of several small ones being added up: a script clips gradients,
steps its scheduler and counts once for each batch that it takes, so batches of which it knows nothing would change
all of that. Ranks whose batches have different sizes weight their gradients by them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position.checks import OPTION, check
from herringbone_parallel.torch.position.loader import follow
from herringbone_parallel.torch.position.orders import Note, Samples, whole_order
from herringbone_parallel.torch.position.rank_places import notice
from herringbone_parallel.torch.position.tracker import Tracker


class Divided(Samples):
    """The order of a `DistributedSampler`, of which a step takes the batches of `full` ranks."""

    def __init__(self, loader: DataLoader[Any], full: int) -> None:
        super().__init__(loader)
        if type(self.sampler) is not DistributedSampler or self._batch_sampler is None:
            raise ParallelError(
                f"{OPTION}: the global batch is divided by the order of a DistributedSampler, with a batch_size, and"
                f" this loader has a {type(self.sampler).__name__}: give it one, or leave the option out"
            )
        self._full, self.whole = full, self.size * full

    @property
    def length(self) -> int:
        length = super().length
        return length - length % self._full if self.sampler.drop_last else length

    def used(self, before: int, batches: int) -> int:
        return min(before + batches * self.whole, self.length)

    def left(self, used: int) -> int:
        rest = self.length - used
        return rest // self.whole if self._drops_last else -(-rest // self.whole)

    def batches(self, used: int) -> int:
        return -(-used // self.whole)

    def place_of(self, before: int, batch: int) -> int:
        return before + self._rank + batch * self.whole

    def repeated(self, before: int, batches: int) -> int:
        return int(batches > 0 and not self._own(before, batches))

    def weight(self, before: int, batches: int) -> float:
        """Return the weight of this rank's newest batch in an average over the ranks."""
        return self._own(before, batches) * self.ranks / self._samples(before, batches) if batches else 1.0

    def rest(self, before: int, note: Note) -> Iterable[Any]:  # noqa: ARG002
        return self._batches(whole_order(self.sampler)[: self.length], before)

    def __len__(self) -> int:
        return self.left(0)

    def _batches(self, order: list[int], before: int) -> Iterator[list[int]]:
        for batch in range(self.left(before)):
            begin = before + batch * self.whole
            samples = order[begin : begin + self.whole]
            # A rank without a sample of its own takes part in the sums of the ranks, with the weight 0.
            yield samples[self._rank :: self.ranks] or samples[:1]

    def _samples(self, before: int, batches: int) -> int:
        """Return the samples that all ranks have in their newest batch."""
        return min(self.whole, self.length - before - (batches - 1) * self.whole)

    def _own(self, before: int, batches: int) -> int:
        return len(range(self._rank, self._samples(before, batches), self.ranks))


def divide(loader: DataLoader[Any], models: Iterable[nn.Module], full: int) -> Tracker:
    """Follow a loader that keeps the global batch of so many ranks, and weight the gradients of the models."""
    check(loader)
    order = Divided(loader, full)
    tracker = follow(loader, Tracker(loader, order))
    weak = weakref.ref(tracker)
    for model in models:
        for name, parameter in model.named_parameters():
            if type(parameter) is not nn.Parameter:
                raise ParallelError(
                    f"{OPTION}: gradients of a {type(parameter.data).__name__} ({name}) are summed before anybody can"
                    " weight them: take DistributedDataParallel, or leave the option out"
                )
            if parameter.requires_grad:
                # Before the sum over the ranks, as autograd calls the hooks of a tensor first.
                parameter.register_hook(partial(_weighted, weak))  # type: ignore[no-untyped-call]
    if order.ranks != full and order.sampler.rank == 0:
        most = -(-order.whole // order.ranks)
        text = f"{order.whole} samples a step on {order.ranks} of {full} ranks: {most} a rank instead of {order.size}"
        notice(f"{OPTION}: {text}")
    return tracker


def _weighted(tracker: weakref.ref[Tracker], gradient: torch.Tensor) -> torch.Tensor:
    found = tracker()
    weight = 1.0 if found is None else found.weight
    return gradient if weight == 1.0 else gradient * weight
