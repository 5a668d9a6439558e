"""A dataset for Keras's `fit`, and for loops of one's own, that can begin in the middle of an epoch."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import keras
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.position.samples import Order
from herringbone_parallel.tensorflow.library_hooks import POSITION
from herringbone_parallel.tensorflow.position.ranks import peers

# The first batches that the main thread reads, at which random numbers are compared.
_WATCHED = 4


class Samples(keras.utils.PyDataset):
    """Batches of samples by their numbers, in an order that depends on the seed and the epoch only.

        data = Samples(len(images), lambda indices, seeds: (images[indices], labels[indices]), batch_size=32)
        model.fit(data, epochs=3, callbacks=[Training(data=data)])

    `read` returns the batch of some indices. For augmentation it draws from `seeds`, two numbers a sample, as by
    `tf.random.stateless_uniform(..., seed=seeds[0])` or `numpy.random.default_rng(seeds[0])`. On several ranks,
    `batch_size` is that of one. `order(epoch)` returns indices of your own; `workers`, `use_multiprocessing` and
    `max_queue_size` are Keras's. Raises `ParallelError` where `read` draws from the random numbers of the process,
    which it does ahead of the steps.
    """

    def __init__(
        self,
        length: int,
        read: Callable[[Any, Any], Any],
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        order: Callable[[int], Any] | None = None,
        drop_last: bool = False,
        **workers: Any,
    ) -> None:
        require(POSITION)
        super().__init__(**workers)
        ranks = peers()
        self.order = Order(
            length,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            order=order,
            drop_last=drop_last,
            ranks=ranks.size,
            rank=ranks.rank,
        )
        # Of a Training: what each call of its optimizer changes.
        self.counters: Callable[[], list[Any]] = lambda: [np.int64(self.order.used)]
        # Called when the loop asks for the next batch of an epoch.
        self.between_steps: Callable[[], None] = lambda: None
        self._taken: list[Any] = []
        self._read, self._watched = read, 0

    def __len__(self) -> int:
        """Return the batches that are left of the epoch."""
        return len(self.order)

    def __getitem__(self, number: int) -> Any:
        """Return a batch: the first is the one behind the samples that were used."""
        indices, seeds = self.order.batch(number)
        if self._watched >= _WATCHED or threading.current_thread() is not threading.main_thread():
            return self._read(indices, seeds)
        self._watched += 1
        before = random.getstate(), _numpy()
        batch = self._read(indices, seeds)
        if (random.getstate(), _numpy()) != before:
            raise ParallelError(
                "`read` draws from Python's or NumPy's random numbers, which it does ahead of the steps: draw from its"
                " `seeds`, as by numpy.random.default_rng(seeds[0])"
            )
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of the epoch, and count those that the loop takes."""
        for number in self.order.pass_through(lambda: _numbers(self.counters())):
            self._taken = self.counters()
            yield self[number]
            if number + 1 < len(self):
                self.between_steps()

    def on_epoch_begin(self) -> None:
        """Have `fit` take the batches that are left: at the end of the data it makes a step without a batch."""
        # Keras gives its iterator over epochs to nobody, nor its adapter of this dataset.
        sys._getframe(2).f_locals["self"]._num_batches = len(self.order)

    def on_epoch_end(self) -> None:
        """Keep `fit` from shuffling the batches, which have their order; it calls this before its first epoch, too."""
        adapter = sys._getframe(1).f_locals["self"]
        for one in (adapter, adapter.enqueuer):
            if one is not None:
                one.shuffle = False

    def is_ahead(self) -> bool:
        """Return True while the batch that the loop took last waits for a step."""
        return bool(self._taken) and _numbers(self._taken) == _numbers(self.counters())


def _numbers(tensors: list[Any]) -> list[float]:
    return [float(tensor.numpy()) if hasattr(tensor, "numpy") else float(tensor) for tensor in tensors]


def _numpy() -> Any:
    _, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
    return keys.tobytes(), rest
