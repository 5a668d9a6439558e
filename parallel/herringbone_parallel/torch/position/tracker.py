"""The place of one loader.

    begin of an epoch    [1] `creation`: the random numbers before the iterator is made, which seeds its workers
                         [2] `drawing`: those before the first index is asked for, from which samplers shuffle
    each batch           [3] `taken`: the training loop has it; what workers fetched ahead does not count
    optimizer step       [4] `used`: all that was taken before a completed step
    after a restart      [5] [1] and [2] are repeated under the numbers of then, so the order is the same; the indices
                         of used samples are passed over, and none of the samples is read

A worker seeds the numbers of each sample from the loader's seed, the epoch, the sample and its place in the order:
whoever fetches a sample, and in whatever process, augments it alike. Of a dataset without indices, see `streams`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.checks import is_torchs
from herringbone_parallel.torch.position.orders import Batches, Samples
from herringbone_parallel.torch.position.random_state import RandomState
from herringbone_parallel.torch.position.streams import Stream, StreamState


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

    `length` is that of the whole order: one of another length is of other data. Batches of a script's own sampler are
    counted instead of samples. A dataset without indices has its own state in `stream`, and no length. Samples of all
    epochs are augmented with `seed`, that of the first epoch's workers. `begin` is how this epoch began; None between
    epochs. Of accelerate's loaders, see `prepared`: the numbers under which the next batch has been read `ahead`, its
    counter of epochs (`iteration`), and the seed of its sampler (`order_seed`).
    """

    epoch: int
    samples: int
    ranks: int
    length: int
    stream: StreamState | None = None
    seed: int | None = None
    begin: Begin | None = None
    ahead: RandomState | None = None
    iteration: int = 0
    order_seed: int | None = None


# What belongs to a pass.
_PASS = (
    *("epoch", "taken", "_used", "_before", "_creation", "_drawing", "_open", "_began", "_taken_state", "_used_state"),
    *("_left", "_outer"),
)


class Tracker:
    """The place of one loader; see the module's picture. It keeps no reference to the loader, which keeps it."""

    def __init__(self, loader: DataLoader[Any], order: Samples | Stream | None = None) -> None:
        self.order = order or _order(loader)
        self.has_workers = loader.num_workers > 0
        self.epoch = -1
        self.seed: int | None = None
        self.taken = 0
        self._used = 0
        # The batches of the newest completed step.
        self.pace = 0
        # Samples of this epoch that were used before this process began.
        self._before = 0
        own = [
            loader.generator,
            *(value for one in self.order.drawing for value in getattr(one, "__dict__", {}).values()),
        ]
        # One generator may be both.
        self._generators = list({id(one): one for one in own if isinstance(one, torch.Generator)}.values())
        self._keeps_iterator = self.has_workers and loader.persistent_workers
        self._creation: Moment | None = None
        self._drawing: Moment | None = None
        self._open: object | None = None
        self._resumed: Place | None = None
        # What the open pass has gone on from.
        self._began: Place | None = None
        # Of the pass that was open when this one began: a script may look at the loader's first batch meanwhile.
        self._outer: dict[str, Any] | None = None
        # The states of the loader's generators as its sampler has left them.
        self._left: list[bytes] | None = None
        self._unrepeatable = ""
        # Of a dataset without indices: its state behind the newest batch, and behind the newest step.
        self._taken_state: StreamState | None = None
        self._used_state: StreamState | None = None
        self._thread = 0
        # Called in the main thread before the loop takes a batch, when all is done that belongs to the step before.
        self.between_steps: Callable[[], None] = lambda: None

    # What a checkpoint takes.

    def step(self) -> None:
        """Count what was taken as used: an optimizer's step is complete."""
        if self._thread != threading.get_ident() and self.is_ahead:
            self.note("the batches are taken in another thread than the steps are made, which takes them ahead")
        self.pace = self.taken - self._used or self.pace
        self._used, self._used_state = self.taken, self._taken_state

    @property
    def is_ahead(self) -> bool:
        """True while batches wait for a step, which come again after a restart."""
        return self.taken != self._used

    @property
    def is_idle(self) -> bool:
        """True while no pass is open, and no batch waits for a step."""
        return self._open is None and not self.is_ahead

    @property
    def batch(self) -> int:
        """The batches of the open epoch that this rank has used before the pass began."""
        place = self._resumed.samples if self._resumed is not None else self._before if self._open else 0
        return self.order.batches(place)

    @property
    def repeated(self) -> int:
        """The samples at the end of the newest batch that only fill the last round of the ranks."""
        return self.order.repeated(self._before, self.taken)

    @property
    def weight(self) -> float:
        """The weight of the newest batch's gradients in an average over the ranks."""
        return self.order.weight(self._before, self.taken) if isinstance(self.order, Samples) else 1.0

    def note(self, why: str) -> None:
        """Refuse checkpoints from now on: nobody can repeat the order, or knows what was used."""
        self._unrepeatable = why

    def place(self) -> Place:
        """Return the place of the last completed step. Raises `ParallelError` for an order that nobody can repeat."""
        if self._unrepeatable:
            raise ParallelError(f"the place in the loader's order cannot be saved: {self._unrepeatable}")
        self._check_generators()
        if self._resumed is not None:
            return self._resumed
        ranks, length = self.order.ranks, self.order.length
        if self._open is None:
            if self.is_ahead:
                raise ParallelError(
                    f"the epoch is over, and its last {self.taken - self._used} batches wait for a step of the"
                    " optimizer: make it before you save, because no checkpoint has gradients. A loop that ends early"
                    " takes no batch without a step: for batch in itertools.islice(loader, steps)"
                )
            between = self.order.between() if isinstance(self.order, Stream) else None
            return Place(self.epoch + 1, 0, ranks, length, between, self.seed, self._kept_begin())
        used = self.order.used(self._before, self._used)
        begin = None if self._creation is None else Begin(self._creation, self._drawing)
        return Place(self.epoch, used, ranks, length, self._used_state, self.seed, begin)

    def behind(self, *, is_over: bool) -> Place:
        """Return `place`; that of the next epoch where `is_over`, as the loop's library may know first."""
        place = self.place()
        if not is_over:
            return place
        return msgspec.structs.replace(place, epoch=self.epoch + 1, samples=0, begin=self._kept_begin())

    def _kept_begin(self) -> Begin | None:
        """Return how an iterator was made that is kept for the next epoch."""
        return Begin(self._creation, None) if self._creation is not None and self._keeps_iterator else None

    def resume(self, place: Place, others: Callable[[], list[Place]] = list) -> None:
        """Let the next iteration go on from a place. Raises `ParallelError` where that is of other data or ranks.

        `others` returns the places of the other ranks, of which a dataset without indices needs all.
        """
        # The length of a script's own order may depend on the epoch, which the script sets before the pass.
        if not self.order.is_own:
            self._check_length(place)
        if isinstance(self.order, Stream):
            if place.stream is not None:
                stream = self.order.resumed(place.ranks, place.stream, lambda: [other.stream for other in others()])
                place = msgspec.structs.replace(place, stream=stream)
        elif place.samples:
            self.order.check_ranks(place.ranks)
        self._resumed = place

    def pass_over(self, batches: int) -> None:
        """Let the next iteration begin so many batches of a rank later, in a later epoch where this one has fewer."""
        place = self.place()
        epoch, samples, begin = place.epoch, place.samples, place.begin
        left, whole = self.order.left(samples), max(self.order.left(0), 1)
        if batches > left:
            epochs, rest = divmod(batches - left - 1, whole)
            epoch, samples, begin, batches = epoch + 1 + epochs, 0, self._kept_begin(), rest + 1
        samples = self.order.used(samples, batches)
        self._resumed = msgspec.structs.replace(place, epoch=epoch, samples=samples, begin=begin)

    # What the loader does.

    def iterate(self, make: Callable[[], Any], is_kept: bool) -> tuple[Any, object]:
        """Begin an epoch, or go on with one: `make` returns torch's own iterator, `is_kept` if that is used again.

        Returns the iterator and the mark of this pass.
        """
        if self._open is not None:
            self._outer = {name: getattr(self, name) for name in _PASS}
        resumed, self._resumed = self._resumed, None
        if resumed is not None and resumed.samples:
            self._check_length(resumed)
        self._began, self._left = resumed, None
        self.taken = self._used = 0
        place = resumed or Place(self.epoch + 1, 0, self.order.ranks, self.order.length)
        begin = place.begin
        self.epoch, self._before, self.seed = (
            place.epoch,
            place.samples,
            self.seed if place.seed is None else place.seed,
        )
        self._taken_state = self._used_state = place.stream
        if isinstance(self.order, Stream):
            self.order.begin(place.stream)
        if begin is None:
            if not is_kept or self._creation is None:
                self._creation = self._moment()
            self._drawing = self._creation if isinstance(self.order, Stream) else None
            inner = make()
        else:
            outside = self._moment()
            self._creation, self._drawing = begin.creation, begin.drawing or outside
            self._set(begin.creation)
            inner = make()
            if not isinstance(self.order, Stream):
                # The first indices are asked for now; with workers, they were.
                inner._sampler_iter.prime()
            if begin.drawing is not None:
                random_state.restore(outside.random)
        if self.seed is None and self.has_workers:
            self.seed = getattr(inner, "_base_seed", None)
        self._open = object()
        return inner, self._open

    def counted(self, inner: Any, mark: object) -> Iterator[Any]:
        """Return the batches of torch's iterator, each counted when the loop takes it."""
        return _Batches(self, inner, mark)

    def take(self, mark: object) -> None:
        """Count a batch that the loop takes, unless it has begun the loader again meanwhile."""
        if self._open is not mark:
            self.note("it is read in several passes at a time, of which nobody knows which one trains")
        self.taken += self._open is mark
        self._thread = threading.get_ident()

    def unpacked(self, mark: object, batch: Any) -> tuple[Any, bool]:
        """Return a batch as the loop takes it, and whether it takes it: see `streams`."""
        if not isinstance(self.order, Stream):
            return batch, True
        batch, state, is_taken = self.order.unpacked(batch, self._taken_state)
        if self._open is mark:
            self._taken_state = state
        return batch, is_taken

    def close(self, mark: object, *, is_over: bool) -> None:
        """End a pass: its iterator is exhausted, or the loop has dropped it.

        A pass without a step is no epoch of the training: a look at the first batch, an evaluation.
        """
        if self._open is not mark:
            return
        self._open = None
        outer, self._outer = self._outer, None
        if isinstance(self.order, Stream):
            self.order.end()
        is_spent = is_over or not self.order.left(self._before)
        if self._used or (is_spent and self._before and not self.taken):
            return
        self.taken = 0
        if outer is not None:
            vars(self).update(outer)
        elif self._began is None:
            self.epoch -= 1
        else:
            self._resumed = self._began

    def indices(self) -> Iterator[Any]:
        """Yield what the loader's sampler would, from the place on."""
        assert isinstance(self.order, Samples)
        if self._drawing is None:
            self._drawing = self._moment()
        else:
            self._set(self._drawing)
        rest, end = iter(self.order.rest(self._before, self.note)), object()
        while True:
            before = self._states()
            index = next(rest, end)
            # A sampler may draw while it is read, as torch's RandomSampler does behind its last index.
            if self._left in (None, before):
                self._left = self._states()
            if index is end:
                return
            yield index

    def place_of(self, batch: int) -> int:
        """Return the place of the first sample in a batch of this process's pass."""
        assert isinstance(self.order, Samples)
        return self.order.place_of(self._before, batch)

    def _moment(self) -> Moment:
        return Moment(random_state.take(), self._states())

    def _states(self) -> list[bytes]:
        return [random_state.to_bytes(generator.get_state()) for generator in self._generators]

    def _check_generators(self) -> None:
        if self._open is not None and self._left not in (None, self._states()):
            raise ParallelError(
                "the place in the loader's order cannot be saved: its torch.Generator is drawn from elsewhere, too, and"
                " begins this epoch again after a restart: give each loader, and the loop, a generator of its own"
            )

    def _check_length(self, place: Place) -> None:
        if place.length != self.order.length:
            raise ParallelError(
                f"the checkpoint is of other data: {place.length} samples an epoch, and now {self.order.length}"
            )

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
        if threading.current_thread() is threading.main_thread():
            self._tracker.between_steps()
        try:
            is_taken = False
            while not is_taken:
                batch, is_taken = self._tracker.unpacked(self._mark, next(self._inner))
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


def _order(loader: DataLoader[Any]) -> Samples | Stream:
    if isinstance(loader.dataset, IterableDataset):
        return Stream(loader)
    batches = loader.batch_sampler
    return Samples(loader) if batches is None or is_torchs(batches, BatchSampler) else Batches(loader)
