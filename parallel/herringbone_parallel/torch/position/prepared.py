"""The place of a loader that accelerate has prepared, for loops of accelerate and Hugging Face's Trainer.

    accelerate's loader      reads one batch ahead of the loop: a batch is `taken` when accelerate hands it out   [1]
      torch's loader         the random numbers before each batch that this process reads are kept                [2]
        BatchSamplerShard    gives rank r of n every n-th batch, or its part of each, so that after each step a
                             begin of the order is used; it fills the last batches from the first ones            [3]
          BatchSampler
            sampler          has the order of the epoch, on any number of ranks                                   [4]

A batch that was read ahead is read again after a restart, under the numbers of [2].
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, count, cycle, islice
from typing import Any

import msgspec
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.checks import check, is_torchs, refuse
from herringbone_parallel.torch.position.loader import follow
from herringbone_parallel.torch.position.orders import ASKED, Note, Samples
from herringbone_parallel.torch.position.random_state import RandomState
from herringbone_parallel.torch.position.tracker import Moment, Place, Tracker

_END = object()


class Numbers:
    """The random numbers with which a process goes on, at the first batch that it reads."""

    def __init__(self, put: Callable[[], None]) -> None:
        self._put = put
        self._is_done = False

    def restore(self, *, again: bool = False) -> None:
        """Restore them, once or again."""
        if again or not self._is_done:
            self._put()
        self._is_done = True


class _Order(Samples):
    """The order of accelerate's samplers, which gives ranks batches, or parts of batches."""

    known = ("torch.", "accelerate.")
    # The samples of a batch are neighbours in the order.
    stride = 1

    def __init__(self, loader: Any) -> None:
        outer = loader.batch_sampler
        self._inner = getattr(outer, "batch_sampler", outer)
        self._shards = None if outer is self._inner else outer
        # As accelerate's own `set_sampler` does; where nobody calls that, the outer one has none.
        outer.sampler = self._inner.sampler
        super().__init__(loader)
        self._drops_last = self._inner.drop_last
        if self._shards is not None and outer.split_batches:
            self.size //= outer.num_processes

    @property
    def ranks(self) -> int:
        """The ranks that share the order."""
        return 1 if self._shards is None else int(self._shards.num_processes)

    def place_of(self, before: int, batch: int) -> int:
        """Return the place of the first sample in a batch of this rank."""
        rank = 0 if self._shards is None else self._shards.process_index
        return before + (rank + batch * self.ranks) * self.size

    def check_ranks(self, ranks: int) -> None:
        """Do nothing: the order does not depend on the number of ranks. [4]"""

    def rest(self, before: int, note: Note) -> Iterable[Any]:
        """Return this rank's batches from a place on. [3]"""
        rest: Any = self.watched(self._rest(before), note, ASKED)
        batches: Any = BatchSampler(rest, self._inner.batch_size, self._inner.drop_last)
        if self._shards is not None:
            shards = copy.copy(self._shards)
            shards.batch_sampler = batches
            batches = islice(shards, 1 if before else 0, None)
        return self.watched(batches, note)

    def _rest(self, before: int) -> Iterable[int]:
        """Return what is left of the order, behind the batches from which accelerate fills the last ones."""
        if self._shards is None or not before:
            return islice(self.sampler, before, None) if before else self.sampler
        order, total = iter(self.sampler), self.size * self.ranks
        first = list(islice(order, total))
        rest = chain(first[before:], islice(order, max(before - total, 0), None))
        return chain(islice(cycle(first), total), rest)


class PreparedTracker(Tracker):
    """The place of a loader of accelerate's; see the module's picture."""

    order: _Order

    def __init__(self, loader: Any) -> None:
        super().__init__(loader.base_dataloader, _Order(loader.base_dataloader))
        self._is_last = False
        self._enters = False
        # The batch of this pass at which it reaches the place, and what is known of that.
        self._turn = -1
        self._known: tuple[Place, Numbers] | None = None
        self._fetches: dict[int, Callable[[], RandomState]] = {}

    # What a checkpoint takes.

    def step(self) -> None:
        """Count what was taken as used."""
        super().step()
        self._fetches = {number: state for number, state in self._fetches.items() if number >= self._used}

    @property
    def is_begun(self) -> bool:
        """True where an open pass has made a step."""
        return self._open is not None and self._used > 0

    @property
    def _is_over(self) -> bool:
        """True where the loop has all batches of the pass, which accelerate knows, and the loop's pass is open."""
        return self._open is not None and self._is_last and not self.is_ahead

    def of_checkpoint(self, iteration: int) -> Place | None:
        """Return the place of the last completed step; None of a loader of which no step has used a batch."""
        if self._resumed is not None and self._known is not None:
            return self._known[0]
        is_over = self._is_over
        place = self.behind(is_over=is_over)
        if not place.epoch and not place.samples:
            return None
        ahead = self._fetches.get(self._used) if self.is_begun and not is_over else None
        return msgspec.structs.replace(
            place,
            ahead=ahead and ahead(),
            # accelerate counts an epoch when it is asked for one more batch.
            iteration=iteration + is_over,
            order_seed=getattr(self.order.sampler, "initial_seed", None),
        )

    def go_on(self, known: Place, numbers: Numbers) -> None:
        """Let the next pass go on from a checkpoint's place."""
        if known.samples and not self.order.left(known.samples):
            # Of the epoch, no batch is left for so many ranks.
            later = {"epoch": known.epoch + 1, "iteration": known.iteration + 1}
            known = msgspec.structs.replace(known, **later, samples=0, begin=None, ahead=None)
        self.resume(known)
        self._known = known, numbers
        if known.order_seed is not None and hasattr(self.order.sampler, "initial_seed"):
            self.order.sampler.initial_seed = known.order_seed

    # What the loader does.

    def batches(self, loader: Any, original: Callable[[Any], Iterator[Any]], skipped: int | None) -> Iterator[Any]:
        """Yield the batches of accelerate's loader; `skipped` is the number that the script passes over, if it asks.

        A script that passes over batches by reading them gets the whole epoch, in the order that it had. [1]
        """
        if skipped is not None and skipped >= len(loader):
            return
        if skipped is not None and (self._resumed is None or not self._resumed.samples):
            used = skipped * self.order.size * self.order.ranks
            self._resumed, self._known = Place(self.epoch + 1, used, self.order.ranks, self.order.length), None
        elif self._known is not None and self._resumed is not None:
            loader.iteration = self._known[0].iteration
        self._enters, self._is_last, is_over = skipped is not None, False, False
        mark: object = None
        try:
            for batch in original(loader):
                mark = mark or self._open
                self.take(mark)
                self._is_last = loader.end_of_dataloader
                yield batch
            is_over = True
        finally:
            if mark is not None:
                self.close(mark, is_over=is_over)

    def iterate(self, make: Callable[[], Any], is_kept: bool) -> tuple[Any, object]:
        """Begin an epoch, or go on with one."""
        resumed, own = self._resumed, getattr(self.order.sampler, "generator", None)
        self._turn, self._fetches = -1, {}
        if self._known is not None:
            self._known[1].restore()
        if resumed is not None and resumed.samples:
            self._turn = 0 if self._enters else self.order.batches(resumed.samples)
            if not self._enters:
                self._resumed = msgspec.structs.replace(resumed, samples=0)
        try:
            return super().iterate(make, is_kept)
        finally:
            self._began = resumed
            if hasattr(self.order.sampler, "generator"):
                self.order.sampler.generator = own

    def counted(self, inner: Any, mark: object) -> Iterator[Any]:  # noqa: ARG002  `batches` counts
        """Yield what torch's loader reads; accelerate asks for one batch ahead. [2]"""
        known = self._known
        for number in count():
            is_turn = known is not None and number == self._turn
            if not self.has_workers:
                self._fetches[number] = random_state.remember()
            ahead = known[0].ahead if is_turn and known is not None else None
            with nullcontext() if ahead is None else random_state.under(ahead):
                batch = next(inner, _END)
            if batch is _END:
                return
            if is_turn and number and known is not None:
                known[1].restore(again=True)
            yield batch

    def _set(self, moment: Moment) -> None:
        if len(moment.generators) == len(self._generators):
            super()._set(moment)
            return
        # accelerate gives a sampler that shuffles a generator where there are several ranks; for this pass alone.
        random_state.restore(moment.random)
        sampler = self.order.sampler
        sampler.generator = torch.Generator() if moment.generators else None
        if moment.generators:
            sampler.generator.set_state(random_state.to_tensor(moment.generators[0]))


_followed: weakref.WeakSet[PreparedTracker] = weakref.WeakSet()


def prepare(loader: Any) -> str:
    """Follow a loader that accelerate has prepared; return the reason where nobody can."""
    refuse("accelerate, as in Trainer,")
    base = getattr(loader, "base_dataloader", None)
    if base is None or not hasattr(loader, "synchronized_generator"):
        return "dispatch_batches reads on one rank for all"
    if getattr(loader, "use_stateful_dataloader", False):
        return "use_stateful_dataloader has a place of its own"
    if isinstance(base.dataset, IterableDataset):
        return "an IterableDataset has no order of samples to go on in"
    outer = base.batch_sampler
    inner = getattr(outer, "batch_sampler", outer)
    # `_Order` makes the batches anew, which is these classes' rule alone.
    if not is_torchs(inner, BatchSampler) or not type(outer).__module__.startswith(_Order.known):
        return f"its batches are made by a {type(inner).__name__}"
    try:
        check(DataLoader(base.dataset, batch_sampler=inner, in_order=getattr(base, "in_order", True)))
        _followed.add(follow(base, PreparedTracker(loader)))
    except (ParallelError, ValueError) as error:
        return str(error)
    return ""


def tracker_of(loader: Any) -> PreparedTracker | None:
    """Return the tracker of a loader of accelerate's, if it has one."""
    tracker = getattr(getattr(loader, "base_dataloader", None), "_herringbone_tracker", None)
    return tracker if isinstance(tracker, PreparedTracker) else None


def followed() -> list[PreparedTracker]:
    """Return the trackers of the loaders that are in use."""
    return list(_followed)


class Skipped:
    """A loader whose passes begin behind some batches, none of which is read: what `skip_first_batches` returns."""

    def __init__(self, loader: Any, original: Callable[[Any], Iterator[Any]], batches: int) -> None:
        self.__dict__.update(_herringbone=(loader, original, batches))

    def __iter__(self) -> Iterator[Any]:
        loader, original, batches = self._herringbone
        tracker = tracker_of(loader)
        assert tracker is not None
        return tracker.batches(loader, original, batches)

    def __len__(self) -> int:
        loader, _, batches = self._herringbone
        return max(len(loader) - int(batches), 0)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._herringbone[0].__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_herringbone"][0], name)
