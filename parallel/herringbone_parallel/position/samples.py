"""The samples of a training, in an order that depends on the seed and the epoch only, and the place in it.

order of an epoch   7 3 5 1 | 4 0 6 2        of 2 ranks with batches of 2, rank 0 takes 7 5 | 4 6, rank 1 3 1 | 0 2
used by one step            ^
on 1 rank, from there on    | 4 0 | 6 2
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.position import place_of, turns

Array = np.ndarray[Any, Any]


class Order:
    """The batches of one rank, and its place.

    >>> order = Order(6, 2, shuffle=False, ranks=2, rank=1)
    >>> order.batch(0)[0].tolist(), order.batch(1)[0].tolist()
    ([1, 3], [5])

    `order(epoch)` returns the indices of an epoch; by default they are shuffled by NumPy's `RandomState`, whose numbers
    are the same in all releases.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        order: Callable[[int], Any] | None = None,
        drop_last: bool = False,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        if length < 1 or batch_size < 1 or seed < 0:
            raise ParallelError(f"{length} samples in batches of {batch_size} with the seed {seed}: give positive ones")
        self._length, self._batch_size, self._drop_last = length, batch_size, drop_last
        self._ranks, self._rank = ranks, rank
        self._order = order or (self._shuffled if shuffle else lambda _: np.arange(length))
        self.seed = seed
        self._kept: tuple[int, Array, int] | None = None
        self.epoch = 0
        # Samples of this epoch that all ranks had used before this process began.
        self.before = 0
        # Batches of this epoch that this process has used.
        self.used = 0
        self._open: object | None = None

    def __len__(self) -> int:
        """Return the batches that are left of the epoch that this process has begun or goes on with."""
        rest = turns(self._length, self.before, self._ranks, self._drop_last)
        return rest // self._batch_size if self._drop_last else -(-rest // self._batch_size)

    def batch(self, number: int) -> tuple[Array, Array]:
        """Return the indices of a batch, and the seed of each of its samples: two numbers, equal on any ranks."""
        first = number * self._batch_size
        last = min(first + self._batch_size, turns(self._length, self.before, self._ranks, self._drop_last))
        places = place_of(self._length, self.before, self._ranks, self._rank, np.arange(first, last))
        indices, key = self._drawn()
        return indices[places], np.stack([np.full(len(places), key), places], axis=1)

    def pass_through(self, steps: Callable[[], Any]) -> Iterator[int]:
        """Yield the numbers of the batches. A pass in which `steps` has not changed is no epoch of the training."""
        begin, place = steps(), (self.epoch, self.before)
        self._open = mark = object()
        try:
            for number in range(len(self)):
                if self._open is mark:
                    self.used = number + 1
                yield number
        finally:
            # The loop may have begun another pass meanwhile.
            if self._open is mark:
                self.used = 0
                if steps() != begin:
                    self.end()
                else:
                    self.epoch, self.before = place

    def end(self) -> None:
        """Go on with the next epoch."""
        self.epoch, self.before, self.used = self.epoch + 1, 0, 0

    def place(self) -> tuple[int, int]:
        """Return the epoch, and its samples that all ranks have used."""
        if self.used >= len(self):
            return self.epoch + 1, 0
        return self.epoch, self.before + self.used * self._batch_size * self._ranks

    def take(self) -> dict[str, Any]:
        """Return the place as a checkpoint keeps it, with what tells other data."""
        epoch, samples = self.place()
        return {"epoch": epoch, "samples": samples, "length": self._length, "order": self._sum() if samples else 0}

    def put(self, saved: dict[str, Any]) -> None:
        """Go on from a place. Raises `ParallelError` for one of other data or of another order."""
        if saved["length"] != self._length:
            raise ParallelError(f"the checkpoint is of other data: {saved['length']} samples, and now {self._length}")
        self.epoch, self.before, self.used = saved["epoch"], saved["samples"], 0
        if self.before and self._sum() != saved["order"]:
            raise ParallelError(
                f"the order of epoch {self.epoch} is not that of the checkpoint: give the same seed, and let an order"
                " of your own depend on the epoch only"
            )

    def _shuffled(self, epoch: int) -> Array:
        return np.random.RandomState(self._numbers(epoch)).permutation(self._length)

    def _numbers(self, epoch: int) -> list[int]:
        return [self.seed % 2**32, self.seed // 2**32, epoch]

    def _drawn(self) -> tuple[Array, int]:
        """Return the indices of the epoch, and a number that the seeds of its samples have."""
        epoch = self.epoch
        if self._kept is None or self._kept[0] != epoch:
            indices = np.asarray(self._order(epoch))
            if indices.shape != (self._length,):
                raise ParallelError(f"the order of epoch {epoch} has {indices.shape} indices of {self._length}")
            key = int(np.random.RandomState([*self._numbers(epoch), 1]).randint(2**31 - 1))
            self._kept = epoch, indices, key
        return self._kept[1:]

    def _sum(self) -> int:
        return zlib.crc32(np.ascontiguousarray(self._drawn()[0], dtype=np.int64).data)
