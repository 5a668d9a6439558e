"""A `DataLoader` that knows which samples completed optimizer steps have used, and can begin behind them.

    begin of an epoch    [1] `creation`: the random numbers before the iterator is made, which seeds its workers
                         [2] `drawing`: those before the first index is asked for, from which samplers shuffle
    each batch           [3] `taken`: the training loop has it; what workers fetched ahead does not count
    optimizer step       [4] `used`: all that was taken before a completed step
    after a restart      [5] [1] and [2] are repeated under the numbers of then, so the order is the same; the indices
                         of used samples are passed over, and none of the samples is read

A worker seeds the numbers of each sample from the loader's seed, the epoch, the sample and its place in the order:
whoever fetches a sample, and in whatever process, augments it alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any, TypeVar

import msgspec
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data.sampler import Sampler

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.position import share
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.checks import check, plain
from herringbone_parallel.torch.position.random_state import RandomState
from herringbone_parallel.torch.position.seeded import Seeded, Tagged

# Indices of a script's sampler at whose drawing the random numbers are compared, which costs 0.4 ms.
_ASKED = 32

Follower = TypeVar("Follower", bound="Tracker")


class Moment(msgspec.Struct, frozen=True):
    """The random numbers at a moment, and the states of the loader's and the sampler's own generators."""

    random: RandomState
    generators: list[bytes]


class Begin(msgspec.Struct, frozen=True):
    """The two moments of an epoch's begin; see the module's picture.

    Between epochs `drawing` is None, and only an iterator that is kept for all epochs has a `creation`.
    """

    creation: Moment
    drawing: Moment | None


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
    if not hasattr(loader, "_herringbone_tracker"):
        check(loader)
    return follow(loader, Tracker(loader))


def follow(loader: DataLoader[Any], tracker: Follower) -> Follower:
    """Let a tracker follow its loader from now on."""
    if not hasattr(loader, "_herringbone_tracker"):
        # `isinstance` and the loader's attributes stay.
        loader.__class__ = _tracked(type(loader))
    # Of an iterator that was made before, nobody knows the begin.
    loader._iterator = None
    loader._herringbone_tracker = tracker  # type: ignore[attr-defined]
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
        own = [loader.generator, *getattr(self.sampler, "__dict__", {}).values()]
        # One generator may be both.
        self._generators = list({id(one): one for one in own if isinstance(one, torch.Generator)}.values())
        self._keeps_iterator = self.has_workers and loader.persistent_workers
        self._creation: Moment | None = None
        self._drawing: Moment | None = None
        self._open: object | None = None
        self._resumed: tuple[Place, Begin | None] | None = None
        # What the open pass has gone on from.
        self._began: tuple[Place, Begin | None] | None = None
        self._unrepeatable = ""

    # What a checkpoint takes.

    def step(self) -> None:
        """Count what was taken as used: an optimizer's step is complete."""
        self._used = self.taken

    @property
    def is_ahead(self) -> bool:
        """True while batches wait for a step, which come again after a restart."""
        return self.taken != self._used

    def place(self) -> Place:
        """Return the place of the last completed step. Raises `ParallelError` for an order that nobody can repeat."""
        if self._unrepeatable:
            raise ParallelError(f"the place in the loader's order cannot be saved: the sampler {self._unrepeatable}")
        if self._resumed is not None:
            return self._resumed[0]
        if self._open is None:
            if self.taken != self._used:
                raise ParallelError(
                    f"the epoch is over, and its last {self.taken - self._used} batches wait for a step of the"
                    " optimizer: make it before you save, because no checkpoint has gradients"
                )
            return Place(self.epoch + 1, 0, self.ranks, self._length)
        samples = self._before + self._used * self._batch_size * self.ranks
        return Place(self.epoch, min(samples, self._length), self.ranks, self._length)

    def begin(self) -> Begin | None:
        """Return how this epoch began; None between epochs."""
        if self._resumed is not None:
            return self._resumed[1]
        if self._creation is None or (self._open is None and not self._keeps_iterator):
            return None
        return Begin(self._creation, None if self._open is None else self._drawing)

    def resume(self, place: Place, begin: Begin | None) -> None:
        """Let the next iteration go on from a place. Raises `ParallelError` where that is of other data or ranks."""
        if place.length != self._length:
            raise ParallelError(
                f"the checkpoint is of other data: {place.length} samples an epoch, and now {self._length}"
            )
        if place.ranks != self.ranks and place.samples and not isinstance(self.sampler, DistributedSampler):
            raise ParallelError(
                f"the loader's order was shared by {place.ranks} ranks, and is now by {self.ranks}: give the"
                " DataLoader a DistributedSampler, whose order does not depend on the number of ranks"
            )
        self._resumed = place, begin

    @property
    def first_place(self) -> int:
        """The place in the epoch's order at which this rank begins."""
        return self._before + (self.sampler.rank if isinstance(self.sampler, DistributedSampler) else 0)

    @property
    def ranks(self) -> int:
        """The ranks that share the order."""
        return self.sampler.num_replicas if isinstance(self.sampler, DistributedSampler) else 1

    @property
    def stride(self) -> int:
        """The distance of two samples of a batch in the epoch's order."""
        return self.ranks

    @property
    def _length(self) -> int:
        sized: Any = self.sampler.dataset if isinstance(self.sampler, DistributedSampler) else self.sampler
        return len(sized)

    # What the loader does.

    def iterate(self, make: Callable[[], Any], is_kept: bool) -> Iterator[Any]:
        """Begin an epoch, or go on with one: `make` returns torch's own iterator, `is_kept` if that is used again."""
        resumed, self._resumed = self._resumed, None
        self._began = resumed
        self.taken = self._used = 0
        place, begin = resumed or (Place(self.epoch + 1, 0, self.ranks, self._length), None)
        self.epoch, self._before = place.epoch, place.samples
        if begin is None:
            if not is_kept or self._creation is None:
                self._creation = self._moment()
            self._drawing = None
            inner = make()
        else:
            outside = self._moment()
            self._creation, self._drawing = begin.creation, begin.drawing or outside
            self._set(begin.creation)
            inner = make()
            # The first indices are asked for now; with workers, they were.
            inner._sampler_iter.prime()
            if begin.drawing is not None:
                random_state.restore(outside.random)
        self._open = object()
        return self.counted(inner)

    def counted(self, inner: Any) -> Iterator[Any]:
        """Return the batches of torch's iterator, each counted when the loop takes it."""
        return _Batches(self, inner, self._open)

    def take(self, mark: object) -> None:
        """Count a batch that the loop takes, unless it has begun the loader again meanwhile."""
        self.taken += self._open is mark

    def close(self, mark: object, *, is_over: bool) -> None:
        """End a pass: its iterator is exhausted, or the loop has dropped it.

        A pass without a step is no epoch of the training: a look at the first batch, an evaluation.
        """
        if self._open is not mark:
            return
        self._open = None
        if self._used or (is_over and self._before and not self.taken):
            return
        self.taken = 0
        if self._began is None:
            self.epoch -= 1
        else:
            self._resumed = self._began

    def indices(self) -> Iterator[Any]:
        """Yield what the loader's sampler would, from the place on."""
        if self._drawing is None:
            self._drawing = self._moment()
        else:
            self._set(self._drawing)
        sampler: Any = self.rest()
        if not type(self.sampler).__module__.startswith("torch."):
            sampler = self._watched(sampler)
        yield from self.batched(sampler)

    def rest(self) -> Iterable[int]:
        """Return what is left of the order from the place on."""
        return _rest(self.sampler, self._before) if self._before else self.sampler

    def batched(self, sampler: Iterable[int]) -> Iterable[Any]:
        """Return what the loader asks its dataset for."""
        if self.batch_sampler is None:
            return sampler
        return BatchSampler(sampler, self._batch_size, self.batch_sampler.drop_last)

    def _watched(self, sampler: Any) -> Iterator[int]:
        """Yield what a sampler of the script does, and note what makes an order that nobody could repeat.

        It is: numbers that it draws between those of the training, and what it changes of itself for the next epoch.
        """
        name, own = type(self.sampler).__name__, plain(self.sampler)
        indices = iter(sampler)
        yield from islice(indices, 1)
        if plain(self.sampler) != own:
            self._unrepeatable = (
                f"{name} changes its own attributes when it is read: let the script call a set_epoch of it"
            )
        for number in count():
            # A sampler that draws does so at each index.
            is_asked = number < _ASKED
            before = random_state.take() if is_asked else None
            index = next(indices, None)
            if is_asked and random_state.take() != before:
                self._unrepeatable = (
                    f"{name} draws random numbers while it is read, between those of the training: draw the whole order"
                    " at its begin"
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
            self._tracker.close(self._mark, is_over=True)
            raise
        except Exception:
            # Of a sample that cannot be read; the loop may go on with the next batch.
            self._tracker.take(self._mark)
            raise
        self._tracker.take(self._mark)
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __del__(self) -> None:
        self._tracker.close(self._mark, is_over=False)


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
        self._place = tracker.first_place

    def prime(self) -> None:
        """Ask for the first index now."""
        self._first += list(islice(self._indices, 1)) if not self._first else []

    def __iter__(self) -> _Primed:
        return self

    def __next__(self) -> Any:
        indices = self._first.pop() if self._first else next(self._indices)
        if isinstance(indices, list) and self._tracker.has_workers:
            indices = Tagged(indices)
            indices.epoch, indices.place, indices.stride = self._tracker.epoch, self._place, self._tracker.stride
            self._place += len(indices) * self._tracker.ranks
        return indices


def _tracked(cls: Any) -> Any:
    """Return a loader's class that also tells its tracker."""

    class Tracked(cls):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return self._herringbone_tracker.iterate(super().__iter__, self._iterator is not None)

        def _get_iterator(self) -> Any:
            if not self.num_workers:
                return super()._get_iterator()
            dataset = self.dataset
            # The attribute is closed to assignments; the iterator keeps what it sees now.
            self.__dict__["dataset"] = Seeded(dataset)
            try:
                return super()._get_iterator()
            finally:
                self.__dict__["dataset"] = dataset

        @property
        def _index_sampler(self) -> Any:
            return _Indices(self._herringbone_tracker)

    Tracked.__name__, Tracked.__qualname__ = cls.__name__, cls.__qualname__
    return Tracked


def _rest(sampler: Any, used: int) -> Iterable[int]:
    """Return what is left to this rank of an epoch of which the ranks have used so many samples together."""
    if not isinstance(sampler, DistributedSampler):
        return islice(sampler, used, None)
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
