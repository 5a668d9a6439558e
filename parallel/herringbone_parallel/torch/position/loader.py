"""A `DataLoader` that knows which samples completed optimizer steps have used, and can begin behind them.

The loader stays the script's own: its class gets three methods. `tracker` has the picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from torch.utils.data import DataLoader
from torch.utils.data.sampler import Sampler

from herringbone_parallel.torch.position.checks import check
from herringbone_parallel.torch.position.orders import Samples
from herringbone_parallel.torch.position.seeded import Seeded, Tagged, replaced
from herringbone_parallel.torch.position.streams import Stream
from herringbone_parallel.torch.position.tracker import Tracker

Follower = TypeVar("Follower", bound=Tracker)


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
    loader._herringbone_tracker = tracker
    return tracker


class _Indices(Sampler[Any]):
    """Stands between a loader and its sampler; the tag of the epoch travels with the indices to the workers."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __iter__(self) -> Iterator[Any]:
        return _Primed(self._tracker)

    def __len__(self) -> int:
        assert isinstance(self._tracker.order, Samples)
        return len(self._tracker.order)


class _Primed:
    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._indices = tracker.indices()
        self._first: list[Any] = []
        self._number = 0

    def prime(self) -> None:
        """Ask for the first index now."""
        self._first += list(islice(self._indices, 1)) if not self._first else []

    def __iter__(self) -> _Primed:
        return self

    def __next__(self) -> Any:
        indices = self._first.pop() if self._first else next(self._indices)
        tracker = self._tracker
        if tracker.has_workers:
            indices = Tagged(indices)
            indices.seed, indices.epoch, indices.stride = tracker.seed, tracker.epoch, tracker.order.stride
            indices.place = tracker.place_of(self._number)
            self._number += 1
        return indices


def _tracked(cls: Any) -> Any:
    """Return a loader's class that also tells its tracker."""

    # torchdata's loader keeps states of its workers in iterators of its own, which fit no other number of workers.
    base = DataLoader if cls.__module__.startswith("torchdata.") else cls

    class Tracked(cls):  # type: ignore[misc]
        def __iter__(self) -> Any:
            tracker = self._herringbone_tracker
            return tracker.counted(*tracker.iterate(partial(base.__iter__, self), self._iterator is not None))

        def _get_iterator(self) -> Any:
            tracker = self._herringbone_tracker
            if isinstance(tracker.order, Stream):
                replacing = tracker.order.replaced(self, tracker.epoch)
            else:
                replacing = replaced(self, Seeded(self.dataset)) if self.num_workers else nullcontext()
            with replacing:
                return base._get_iterator(self)

        @property
        def _index_sampler(self) -> Any:
            tracker = self._herringbone_tracker
            return super()._index_sampler if isinstance(tracker.order, Stream) else _Indices(tracker)

    Tracked.__name__, Tracked.__qualname__ = cls.__name__, cls.__qualname__
    return Tracked
