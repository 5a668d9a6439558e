"""A `DataLoader` that knows which samples completed optimizer steps have used, and can begin behind them.

    begin of an epoch    [1] `creation`: the random numbers before the iterator is made, which seeds its workers
                         [2] `drawing`: those before the first index is asked for, from which samplers shuffle
    each batch           [3] `taken`: the training loop has it; what workers fetched ahead does not count
    optimizer step       [4] `used`: all that was taken before a completed step
    after a restart      [5] [1] and [2] are repeated under the numbers of then, so the order is the same; the indices
                         of used samples are passed over, and none of the samples is read

A worker seeds the numbers of each sample from the loader's seed, the epoch and the sample: whoever fetches a sample,
and in whatever process, augments it alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, get_worker_info
from torch.utils.data.sampler import Sampler

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.position import share
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.random_state import RandomState


class Moment(msgspec.Struct, frozen=True):
    """The random numbers at a moment, and the states of the loader's and the sampler's own generators."""

    random: RandomState
    generators: list[bytes]


class Begin(msgspec.Struct, frozen=True):
    """The two moments of an epoch's begin; see the module's picture."""

    creation: Moment
    drawing: Moment


class Place(msgspec.Struct, frozen=True):
    """The place of a loader: `samples` of this epoch are used by all `ranks` that share its order.

    `length` is that of the whole order: one of another length is of other data.
    """

    epoch: int
    samples: int
    ranks: int
    length: int


def track(loader: DataLoader[Any]) -> Tracker:
    """Follow the place of a loader from now on; the loader is used as before.

        tracker = track(loader)

    Raises `ParallelError` for a loader whose order cannot be repeated.
    """
    tracker = getattr(loader, "_herringbone_tracker", None)
    if tracker is None:
        _check(loader)
        tracker = Tracker(loader)
        loader._herringbone_tracker = tracker
        # `isinstance` and the loader's attributes stay.
        loader.__class__ = _tracked(type(loader))
    return tracker


class Tracker:
    """The place of one loader; see the module's picture. It keeps no reference to the loader, which keeps it."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        batch_sampler: Any = loader.batch_sampler
        self.batch_sampler = batch_sampler
        # Of a loader that was given batches, `loader.sampler` is none of theirs.
        self.sampler: Any = loader.sampler if batch_sampler is None else batch_sampler.sampler
        self.has_workers = loader.num_workers > 0
        self.epoch = -1
        self.taken = 0
        self._used = 0
        # Samples of this epoch that were used before this process began.
        self._before = 0
        self._batch_size = 1 if batch_sampler is None else batch_sampler.batch_size
        own = loader.generator, getattr(self.sampler, "generator", None)
        # One generator may be both.
        self._generators = list({id(generator): generator for generator in own if generator is not None}.values())
        self._creation: Moment | None = None
        self._drawing: Moment | None = None
        self._open: object | None = None
        self._resumed: tuple[Place, Begin | None] | None = None
        self._unrepeatable = ""

    # What a checkpoint takes.

    def step(self) -> None:
        """Count what was taken as used: an optimizer's step is complete."""
        self._used = self.taken

    def place(self) -> Place:
        """Return the place of the last completed step. Raises `ParallelError` for an order that nobody can repeat."""
        if self._unrepeatable:
            raise ParallelError(f"the place in the loader's order cannot be saved: the sampler {self._unrepeatable}")
        if self._resumed is not None:
            return self._resumed[0]
        if self._open is None:
            return Place(self.epoch + 1, 0, self._ranks, self._length)
        samples = self._before + self._used * self._batch_size * self._ranks
        return Place(self.epoch, min(samples, self._length), self._ranks, self._length)

    def begin(self) -> Begin | None:
        """Return how this epoch began; None between epochs."""
        if self._resumed is not None:
            return self._resumed[1]
        if self._open is None or self._creation is None or self._drawing is None:
            return None
        return Begin(self._creation, self._drawing)

    def resume(self, place: Place, begin: Begin | None) -> None:
        """Let the next iteration go on from a place. Raises `ParallelError` where that is of other data or ranks."""
        if place.length != self._length:
            raise ParallelError(
                f"the checkpoint is of other data: {place.length} samples an epoch, and now {self._length}"
            )
        if place.ranks != self._ranks and place.samples and not isinstance(self.sampler, DistributedSampler):
            raise ParallelError(
                f"the loader's order was shared by {place.ranks} ranks, and is now by {self._ranks}: give the"
                " DataLoader a DistributedSampler, whose order does not depend on the number of ranks"
            )
        self._resumed = place, begin

    @property
    def _ranks(self) -> int:
        return self.sampler.num_replicas if isinstance(self.sampler, DistributedSampler) else 1

    @property
    def _length(self) -> int:
        sized: Any = self.sampler.dataset if isinstance(self.sampler, DistributedSampler) else self.sampler
        return len(sized)

    # What the loader does.

    def iterate(self, make: Callable[[], Any], is_kept: bool) -> _Batches:
        """Begin an epoch, or go on with one: `make` returns torch's own iterator, `is_kept` if that is used again."""
        resumed, self._resumed = self._resumed, None
        self.taken = self._used = 0
        place, begin = resumed or (Place(self.epoch + 1, 0, self._ranks, self._length), None)
        self.epoch, self._before = place.epoch, place.samples
        if begin is None:
            if not is_kept or self._creation is None:
                self._creation = self._moment()
            self._drawing = None
            inner = make()
        else:
            self._creation, self._drawing = begin.creation, begin.drawing
            outside = random_state.take()
            self._set(begin.creation)
            inner = make()
            if not self.has_workers:
                # With workers, the first indices were asked for by now.
                inner._sampler_iter.prime()
            random_state.restore(outside)
        self._open = object()
        return _Batches(self, inner, self._open)

    def take(self, mark: object) -> None:
        """Count a batch that the loop takes, unless it has begun the loader again meanwhile."""
        self.taken += self._open is mark

    def close(self, mark: object) -> None:
        """End an epoch: its iterator is exhausted, or the loop has dropped it."""
        if self._open is mark:
            self._open = None

    def indices(self) -> Iterator[Any]:
        """Yield what the loader's sampler would, from the place on."""
        if self._drawing is None:
            self._drawing = self._moment()
        else:
            self._set(self._drawing)
        sampler: Any = self.sampler
        if isinstance(sampler, DistributedSampler):
            sampler = _rest(sampler, self._before) if self._before else sampler
        else:
            known = type(sampler).__module__.startswith("torch.")
            sampler = islice(sampler if known else self._watched(), self._before, None)
        if self.batch_sampler is None:
            yield from sampler
        else:
            yield from BatchSampler(sampler, self._batch_size, self.batch_sampler.drop_last)

    def _watched(self) -> Iterator[int]:
        """Yield what a sampler of the script does, and note if it draws after its first index.

        Then what it yields depends on what the training draws meanwhile, and nobody could repeat it.
        """
        indices = iter(self.sampler)
        yield from islice(indices, 1)
        while True:
            before = random_state.take()
            index = next(indices, None)
            if random_state.take() != before:
                self._unrepeatable = (
                    f"{type(self.sampler).__name__} draws random numbers while it is read, between those of the"
                    " training: draw the whole order at its begin, or from a generator of its own"
                )
            if index is None:
                return
            yield index

    def _moment(self) -> Moment:
        states = [random_state.to_bytes(generator.get_state()) for generator in self._generators]
        return Moment(random_state.take(), states)

    def _set(self, moment: Moment) -> None:
        random_state.restore(moment.random)
        for generator, state in zip(self._generators, moment.generators, strict=True):
            generator.set_state(random_state.to_tensor(state))


class _Batches:
    """torch's iterator of a loader; counts what the training loop takes, and tells when it takes no more."""

    def __init__(self, tracker: Tracker, inner: Any, mark: object) -> None:
        self._tracker, self._inner, self._mark = tracker, inner, mark

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._inner)
        except StopIteration:
            self._tracker.close(self._mark)
            raise
        self._tracker.take(self._mark)
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __del__(self) -> None:
        self._tracker.close(self._mark)


class _Indices(Sampler[Any]):
    """Stands between a loader and its sampler; the tag of the epoch travels with the indices to the workers."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __iter__(self) -> Iterator[Any]:
        return _Primed(self._tracker)

    def __len__(self) -> int:
        tracker: Any = self._tracker
        return len(tracker.batch_sampler if tracker.batch_sampler is not None else tracker.sampler)


class _Primed:
    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._indices = tracker.indices()
        self._first: list[Any] = []

    def prime(self) -> None:
        """Ask for the first index now."""
        self._first = list(islice(self._indices, 1))

    def __iter__(self) -> _Primed:
        return self

    def __next__(self) -> Any:
        indices = self._first.pop() if self._first else next(self._indices)
        if isinstance(indices, list) and self._tracker.has_workers:
            indices = _Tagged(indices)
            indices.epoch = self._tracker.epoch
        return indices


class _Tagged(list[int]):
    epoch = 0


class _Seeded:
    """A dataset in the workers of a loader: seeds all random numbers before each sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        info = get_worker_info()
        assert info is not None
        # A worker's own seed is the loader's and its number.
        numbers = info.seed - info.id, getattr(indices, "epoch", 0)
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is not None:
            random_state.seed(*numbers, *indices[:1])
            return fetch(list(indices))  # type: ignore[no-any-return]
        samples = []
        for index in indices:
            random_state.seed(*numbers, index)
            samples.append(self.dataset[index])
        return samples

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _tracked(cls: Any) -> Any:
    """Return a loader's class that also tells its tracker."""

    class Tracked(cls):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return self._herringbone_tracker.iterate(super().__iter__, self._iterator is not None)

        def _get_iterator(self) -> Any:
            if not self.num_workers or not self._auto_collation:
                return super()._get_iterator()
            dataset = self.dataset
            # The attribute is closed to assignments; the iterator keeps what it sees now.
            self.__dict__["dataset"] = _Seeded(dataset)
            try:
                return super()._get_iterator()
            finally:
                self.__dict__["dataset"] = dataset

        @property
        def _index_sampler(self) -> Any:
            return _Indices(self._herringbone_tracker)

    Tracked.__name__, Tracked.__qualname__ = cls.__name__, cls.__qualname__
    return Tracked


def _rest(sampler: DistributedSampler[Any], used: int) -> list[int]:
    """Return this rank's part of an epoch of which the ranks have used so many samples together."""
    whole: Any = copy.copy(sampler)
    whole.num_replicas, whole.rank, whole.drop_last = 1, 0, False
    whole.num_samples = whole.total_size = len(whole.dataset)
    order, ranks, rank = list(whole), sampler.num_replicas, sampler.rank
    if type(sampler) is not DistributedSampler and list(sampler) != share(order, 0, ranks, rank, sampler.drop_last):
        raise ParallelError(
            f"the sampler {type(sampler).__name__} divides its order among ranks by a rule of its own, so nobody knows"
            " what is left of the epoch: give the DataLoader a torch.utils.data.DistributedSampler"
        )
    return share(order, used, ranks, rank, sampler.drop_last)


def _check(loader: DataLoader[Any]) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise ParallelError("an IterableDataset has no order of samples to go on in: give a dataset with indices")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise ParallelError(
            f"the batch_sampler {type(loader.batch_sampler).__name__} makes batches of its own: give the DataLoader a"
            " sampler and a batch_size"
        )
