"""The order in which a loader gives samples, or batches of a script's own, and the rest of an order that is begun."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any

from torch import distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core import position
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.checks import plain

# Indices at whose drawing the random numbers are compared; later, they are compared at each batch.
ASKED = 32
# Places that each batch of a script's own sampler has: nobody knows how many samples the batches before it have.
_PLACES = 1 << 20

Note = Callable[[str], None]


class Samples:
    """The order of a sampler; a place counts samples of all `ranks` that share the order."""

    # The packages whose samplers are known; another one is the script's own.
    known: tuple[str, ...] = ("torch.",)

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._batch_sampler: Any = loader.batch_sampler
        # Of a loader that was given batches, `loader.sampler` is none of theirs.
        batches = self._batch_sampler
        self.sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
        self.size = getattr(batches, "batch_size", None) or 1
        self._drops_last = bool(getattr(batches, "drop_last", False))
        # The objects that may draw the order.
        self.drawing = [self.sampler]
        # The readers that the order is divided among, as far as it is known; 0 if it is not.
        self.replicas, self._rank = 0, 0
        if isinstance(self.sampler, DistributedSampler):
            self.replicas, self._rank = self.sampler.num_replicas, self.sampler.rank

    @property
    def is_own(self) -> bool:
        """True for an order of the script's own."""
        return not all(one is None or type(one).__module__.startswith(self.known) for one in self.drawing)

    @property
    def ranks(self) -> int:
        """The ranks that share the order."""
        return self.replicas or 1

    @property
    def stride(self) -> int:
        """The distance of a batch's samples in the order."""
        return self.ranks

    @property
    def length(self) -> int:
        """The length of the whole order: one of another length is of other data."""
        return len(self.sampler.dataset if self.replicas else self.sampler)

    def used(self, before: int, batches: int) -> int:
        """Return the place behind so many batches of each rank."""
        return min(before + batches * self.size * self.ranks, self.length)

    def left(self, used: int) -> int:
        """Return the number of batches that a rank has from a place to the epoch's end."""
        rest, total = self.length - used, self.size * self.ranks
        return rest // total if self._drops_last else -(-rest // total)

    def batches(self, used: int) -> int:
        """Return the number of this rank's batches before a place."""
        return -(-used // (self.size * self.ranks))

    def place_of(self, before: int, batch: int) -> int:
        """Return the place of the first sample in a batch of this rank."""
        return before + self._rank + batch * self.size * self.ranks

    def repeated(self, before: int, batches: int) -> int:
        """Return how many samples at the end of this rank's newest batch only fill the last round of the ranks."""
        if not self.replicas or self.sampler.drop_last:
            return 0
        return position.repeated(self.length - before, self.ranks, self._rank, batches * self.size)

    def weight(self, before: int, batches: int) -> float:  # noqa: ARG002
        """Return the weight of this rank's newest batch in an average over the ranks."""
        return 1.0

    def check_ranks(self, ranks: int) -> None:
        """Raise `ParallelError` if an order that so many ranks shared cannot go on here."""
        if ranks != self.ranks and not self.replicas:
            raise ParallelError(
                f"the loader's order was shared by {ranks} ranks, and is now by {self.ranks}: give the DataLoader a"
                " DistributedSampler, whose order does not depend on the number of ranks"
            )

    def rest(self, before: int, note: Note) -> Iterable[Any]:
        """Return what the loader's sampler yields from a place on; notes what makes an order that nobody can repeat."""
        rest: Any = _rest(self.sampler, before) if before else self.sampler
        if self._batch_sampler is None:
            return self.watched(rest, note, ASKED)
        return self.watched(
            BatchSampler(self.watched(rest, note, ASKED), self.size, self._batch_sampler.drop_last),
            note,
        )

    def watched(self, indices: Iterable[Any], note: Note, most: int | None = None) -> Iterable[Any]:
        """Return indices, or batches of them; those of a script's own order are watched."""
        return watched(self.drawing, indices, note, most) if self.is_own else indices

    def __len__(self) -> int:
        return len(self.sampler if self._batch_sampler is None else self._batch_sampler)


class ByBatches:
    """The shared part of orders whose place counts batches of each rank; nobody knows how many are left."""

    @property
    def ranks(self) -> int:
        """The ranks that share the order, by whatever rule."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    def used(self, before: int, batches: int) -> int:
        """Return the place behind so many batches of each rank."""
        return before + batches

    def batches(self, used: int) -> int:
        """Return the number of this rank's batches before a place."""
        return used

    def left(self, used: int) -> int:  # noqa: ARG002  as `Samples` has it, here and below
        """Return a number of batches that may be left."""
        return 1

    def repeated(self, before: int, batches: int) -> int:  # noqa: ARG002
        """Return 0: nothing is repeated."""
        return 0


class Batches(ByBatches, Samples):
    """The order of a script's own batch sampler."""

    stride = 1

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self.replicas, self._dataset = 0, loader.dataset
        self.drawing = [self._batch_sampler, self.sampler]

    @property
    def length(self) -> int:
        # The number of batches may differ from epoch to epoch.
        return len(self._dataset) if hasattr(self._dataset, "__len__") else 0

    def place_of(self, before: int, batch: int) -> int:
        return (before + batch) * _PLACES

    def check_ranks(self, ranks: int) -> None:
        if ranks != self.ranks:
            raise ParallelError(
                f"the batches of {type(self._batch_sampler).__name__} were made for {ranks} ranks, and nobody knows by"
                f" which rule {self.ranks} would divide what is left of the epoch: go on with {ranks} ranks, or save"
                " between epochs"
            )

    def rest(self, before: int, note: Note) -> Iterable[Any]:
        return islice(watched(self.drawing, self._batch_sampler, note), before, None)


def watched(drawing: list[Any], indices: Iterable[Any], note: Note, most: int | None = None) -> Iterator[Any]:
    """Yield what a sampler of the script does, and note what makes an order that nobody could repeat.

    It is: numbers that it draws between those of the training, and what it changes of itself for the next epoch.
    """
    name, own = type(drawing[0]).__name__, [plain(one) for one in drawing]

    def compare() -> None:
        if [plain(one) for one in drawing] != own:
            note(f"{name} changes its own attributes when it is read: let the script call a set_epoch of it")

    iterator = iter(indices)
    yield from islice(iterator, 1)
    compare()
    for number in count():
        is_asked = most is None or number < most
        before = random_state.take() if is_asked else None
        index = next(iterator, None)
        if is_asked and random_state.take() != before:
            note(
                f"{name} draws random numbers while it is read, between those of the training: draw the whole order"
                " at its begin"
            )
        if index is None:
            compare()
            return
        yield index


def whole_order(sampler: DistributedSampler[Any]) -> list[int]:
    """Return the order of an epoch that the ranks share."""
    whole: Any = copy.copy(sampler)
    whole.num_replicas, whole.rank, whole.drop_last = 1, 0, False
    whole.num_samples = whole.total_size = len(whole.dataset)
    return list(whole)


def _rest(sampler: Any, used: int) -> Iterable[int]:
    """Return what is left to this rank of an epoch of which the ranks have used so many samples together."""
    if not isinstance(sampler, DistributedSampler):
        return islice(sampler, used, None)
    order, ranks, rank = whole_order(sampler), sampler.num_replicas, sampler.rank
    drop_last = sampler.drop_last
    if type(sampler) is not DistributedSampler and list(sampler) != position.share(order, 0, ranks, rank, drop_last):
        raise ParallelError(
            f"the sampler {type(sampler).__name__} divides its order among ranks by a rule of its own, so nobody knows"
            " what is left of the epoch: give the DataLoader a torch.utils.data.DistributedSampler"
        )
    return position.share(order, used, ranks, rank, drop_last)
