"""Gluon's DataLoader, in an order that depends on the seed and the epoch only."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.position.samples import Order
from herringbone_parallel.position.training import Peers
from herringbone_parallel.reduce import horovod
from herringbone_parallel.reduce.collectives import all_gather

_REFUSED = {
    "sampler": "give order=, a function that returns the indices of an epoch",
    "batch_sampler": "give batch_size, and order= for indices of your own",
    "thread_pool": "its threads draw from the random numbers of the process, ahead of the steps: use processes",
    "auto_reload": "it begins the next epoch before the last step of this one",
}


def peers() -> Peers:
    """Return the ranks of Horovod's names, or one alone. Raises `ParallelError` for ranks that nobody has joined."""
    if horovod.is_initialized():
        engine = horovod.engine()
        return Peers(engine.rank, engine.size, lambda data: all_gather(engine, data))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ParallelError(
            "several ranks, and none has joined the others: call hvd.init() first. The workers of a distributed"
            " key-value store have no common checkpoint: its servers have the optimizer"
        )
    return Peers()


class DataLoader(mx.gluon.data.DataLoader):
    """Loads batches of a dataset, and can begin in the middle of an epoch.

        loader = DataLoader(dataset, 32, shuffle=True, seed=1, num_workers=2)

    Options are Gluon's. `seed` makes the order of each epoch, of which each rank takes its part; `order(epoch)` returns
    indices of your own. Workers seed Python's, NumPy's and MXNet's random numbers for each sample, from the seed, the
    epoch and its place. Raises `ParallelError` for an option that has no place.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        shuffle: bool = False,
        *,
        seed: int = 0,
        order: Callable[[int], Any] | None = None,
        last_batch: str = "keep",
        **options: Any,
    ) -> None:
        for name, remedy in _REFUSED.items():
            if options.pop(name, None):
                raise ParallelError(f"DataLoader({name}=...): {remedy}")
        if last_batch not in ("keep", "discard"):
            raise ParallelError(f"DataLoader(last_batch={last_batch!r}): samples belong to an epoch: keep or discard")
        ranks = peers()
        self.order = Order(
            len(dataset),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            order=order,
            drop_last=last_batch == "discard",
            ranks=ranks.size,
            rank=ranks.rank,
        )
        # Of a Training: the completed steps.
        self.steps: Callable[[], int] = lambda: self.order.used
        # Called when the loop asks for the next batch of an epoch.
        self.between_steps: Callable[[], None] = lambda: None
        self._before = -1
        super().__init__(Seeded(dataset), batch_sampler=_Batches(self.order), **options)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of the epoch, and count those that the loop takes."""
        batches = super().__iter__()
        for number in self.order.pass_through(lambda: self.steps()):
            batch = next(batches)
            self._before = self.steps()
            yield batch
            if number + 1 < len(self.order):
                self.between_steps()

    def is_ahead(self) -> bool:
        """Return True while the batch that the loop took last waits for a step."""
        return self._before == self.steps()


class Seeded:
    """A dataset whose samples are seeded in the workers of a loader."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._main = dataset, os.getpid()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Tagged) -> Any:
        if os.getpid() != self._main:
            first, second = index.seed
            random.seed(first << 64 | second)
            np.random.seed([first, second % 2**32])
            mx.random.seed(np.random.randint(2**31 - 1))
        return self._dataset[int(index)]


class Tagged(int):
    """The index of a sample, with its seed."""

    seed: tuple[int, int]


class _Batches:
    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[Tagged]]:
        for number in range(len(self._order)):
            indices, seeds = self._order.batch(number)
            batch = [Tagged(index) for index in indices.tolist()]
            for index, seed in zip(batch, seeds.tolist(), strict=True):
                index.seed = seed
            yield batch
