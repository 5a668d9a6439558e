"""Samples that draw the same random numbers whichever worker of a loader reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, Subset, get_worker_info

from herringbone_parallel.torch.position import random_state


class Tagged(list[int]):
    """The indices of a batch; in the order of the epoch, the first has `place`, and each next is `stride` behind.

    Without a `seed`, the workers' own counts: their iterator is the loader's first one.
    """

    seed: int | None = None
    epoch, place, stride = 0, 0, 1


class Seeded:
    """A dataset in the workers of a loader: seeds all random numbers before each sample. Else it is the dataset."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_herringbone_dataset"] = dataset

    def __getitems__(self, indices: Tagged) -> Sequence[Any]:
        info = get_worker_info()
        assert info is not None
        dataset = self._herringbone_dataset
        # A worker's own seed is the loader's and its number.
        numbers = info.seed - info.id if indices.seed is None else indices.seed, indices.epoch
        one = dataset.dataset if type(dataset) is Subset else dataset
        if hasattr(one, "__getitems__"):
            # It reads a batch at once.
            random_state.seed(*numbers, indices[0], indices.place)
            return dataset.__getitems__(list(indices))  # type: ignore[no-any-return]
        samples = []
        for number, index in enumerate(indices):
            random_state.seed(*numbers, index, indices.place + number * indices.stride)
            samples.append(dataset[index])
        return samples

    def __getitem__(self, index: Any) -> Any:
        return self._herringbone_dataset[index]

    def __len__(self) -> int:
        return len(self._herringbone_dataset)

    # What a `worker_init_fn` reads or changes.

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._herringbone_dataset)

    def __reduce__(self) -> Any:
        return Seeded, (self._herringbone_dataset,)

    def __getattr__(self, name: str) -> Any:
        if name == "_herringbone_dataset":
            raise AttributeError(name)
        return getattr(self._herringbone_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._herringbone_dataset, name, value)


@contextmanager
def replaced(loader: DataLoader[Any], dataset: Any, collate: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """Let an iterator that is made inside keep another dataset, and another `collate_fn`."""
    own = loader.dataset, loader.collate_fn
    # The attribute is closed to assignments.
    loader.__dict__["dataset"], loader.collate_fn = dataset, collate or loader.collate_fn
    try:
        yield
    finally:
        loader.__dict__["dataset"], loader.collate_fn = own
