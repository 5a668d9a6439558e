"""A dataset without indices in a loader: its own state behind each batch, from the worker that read the batch.

    worker         [1] `_Streamed`: loads the state of this worker, seeds the numbers of each sample, counts samples
                   [2] `_Marking`: collates, and gives the batch the worker's number and the state behind the batch
    main process   [3] `Stream.unpacked`: keeps the states of all workers, and gives the loop the batch as it was
    after a restart [4] torch asks worker 0 first; the workers whose turn is over give an empty batch first

Without workers, the main process does [1] and [2]; then samples draw from the process's random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec
import torch
from torch.utils.data import DataLoader, get_worker_info

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.states import decode, encode
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.orders import ByBatches
from herringbone_parallel.torch.position.random_state import packed, unpacked
from herringbone_parallel.torch.position.seeded import Seeded, replaced


class StreamState(msgspec.Struct, frozen=True):
    """The states of a dataset behind used batches: by worker, and the worker of the last one."""

    workers: int
    last: int
    states: dict[int, bytes]


class Stream(ByBatches):
    """The place in a dataset without indices."""

    length, stride = 0, 1
    drawing: tuple[Any, ...] = ()

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset: Any = loader.dataset
        self._workers = loader.num_workers
        self._size = loader.batch_size or 1
        self._next: StreamState | None = None
        # The state at the begin of an epoch, which a dataset does not return to by itself.
        self._fresh: Any = None

    @property
    def replicas(self) -> int:
        """The readers that the dataset is divided among, as far as it is known; 0 if it is not."""
        return getattr(self._dataset, "num_replicas", 0)

    @property
    def ranks(self) -> int:
        """The ranks that share the dataset."""
        return self.replicas or super().ranks

    is_own = False

    def resumed(
        self, ranks: int, mine: StreamState, others: Callable[[], list[StreamState | None]]
    ) -> StreamState | None:
        """Return the state to go on with; `others` returns those of the other ranks."""
        if (ranks, mine.workers) == (self.ranks, self._workers):
            return mine
        name = type(self._dataset).__name__
        if not hasattr(self._dataset, "merged"):
            raise ParallelError(
                f"{name} was read by {ranks} ranks with {mine.workers} workers, and is now by {self.ranks} with"
                f" {self._workers}: the states of its readers fit no others. Go on with as many, save between epochs,"
                " or read whole files with herringbone_parallel.torch.position.api.Shards"
            )
        states = [state for state in (mine, *others()) if state is not None]
        readers = [_unpacked(content)[2] for state in states for content in state.states.values()]
        merged = _packed(0, False, self._dataset.merged(readers), name)
        workers = max(self._workers, 1)
        return StreamState(self._workers, workers - 1, dict.fromkeys(range(workers), merged))

    def between(self) -> StreamState | None:
        """Return what a dataset keeps from epoch to epoch, where the script names the epoch by no set_epoch."""
        if not self._workers and not hasattr(self._dataset, "set_epoch"):
            return StreamState(0, 0, {0: _packed(0, False, self._dataset.state_dict(), type(self._dataset).__name__)})
        return None

    def begin(self, state: StreamState | None) -> None:
        """Let the next iterator begin from a state, or anew."""
        self._next = state
        if state is not None and not self._workers and hasattr(self._dataset, "set_epoch"):
            self._fresh = copy.deepcopy(self._dataset.state_dict())

    def end(self) -> None:
        """Return the dataset to its begin, behind an epoch that began from a state, before the script's set_epoch."""
        if self._fresh is not None:
            self._dataset.load_state_dict(self._fresh)
            self._fresh = None

    def replaced(self, loader: DataLoader[Any], epoch: int) -> AbstractContextManager[None]:
        """Let the iterator that is made inside read the dataset from its state on, and mark its batches."""
        dataset = _Streamed(self._dataset, epoch, self._next, self._size)
        return replaced(loader, dataset, _Marking(dataset, loader.collate_fn))

    def unpacked(self, batch: Any, state: StreamState | None) -> tuple[Any, StreamState | None, bool]:
        """Return a batch as the loop takes it, the state behind it, and False for none that the loop takes."""
        states = {} if state is None else state.states
        if not batch.state:
            return None, state, False
        return batch.batch, StreamState(self._workers, batch.worker, {**states, batch.worker: batch.state}), True


class _Marked(NamedTuple):
    """A batch, and the packed state of the worker behind it; empty for a batch that stands for a turn that is over."""

    batch: Any
    worker: int
    state: bytes


class _Skipped:
    """A sample of an empty batch."""


class _Streamed(Seeded):
    """A dataset without indices, from the state of this worker on."""

    def __init__(self, dataset: Any, epoch: int, state: StreamState | None, size: int) -> None:
        super().__init__(dataset)
        self.__dict__["_herringbone_begin"] = epoch, state, size
        # The samples of this worker in the epoch, and whether there are no more.
        self.__dict__["_herringbone_read"] = 0, False

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        epoch, state, size = self._herringbone_begin
        dataset, worker, read = self._herringbone_dataset, 0 if info is None else info.id, 0
        if state is not None:
            if content := state.states.get(worker):
                read, is_over, own = _unpacked(content)
                dataset.load_state_dict(own)
                if is_over:
                    return
            if worker <= state.last < state.workers - 1:
                yield from (_Skipped() for _ in range(size))
        samples = iter(dataset)
        while True:
            if info is not None:
                random_state.seed(info.seed - info.id, epoch, worker, read)
            try:
                sample = next(samples)
            except StopIteration:
                # A last batch that is not full is packed behind the end.
                self.__dict__["_herringbone_read"] = read, True
                return
            read += 1
            self.__dict__["_herringbone_read"] = read, False
            yield sample

    def __reduce__(self) -> Any:
        return _Streamed, (self._herringbone_dataset, *self._herringbone_begin)

    def packed(self) -> bytes:
        """Return the state behind the newest sample."""
        dataset, (read, is_over) = self._herringbone_dataset, self._herringbone_read
        return _packed(read, is_over, dataset.state_dict(), type(dataset).__name__)


class _Marking:
    """A loader's `collate_fn`, which also marks the batch."""

    def __init__(self, streamed: _Streamed, collate: Callable[[Any], Any]) -> None:
        self._streamed, self._collate = streamed, collate

    def __call__(self, samples: Any) -> _Marked:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        if type(samples[0] if isinstance(samples, list) and samples else samples) is _Skipped:
            return _Marked(None, worker, b"")
        return _Marked(self._collate(samples), worker, self._streamed.packed())


def _packed(read: int, is_over: bool, state: Any, name: str) -> bytes:
    large: dict[str, torch.Tensor] = {}
    content = encode(state, name, large)
    return msgspec.msgpack.encode((read, is_over, content, {key: packed(one) for key, one in large.items()}))


def _unpacked(content: bytes) -> tuple[int, bool, Any]:
    read, is_over, state, tensors = msgspec.msgpack.decode(content)
    return read, is_over, decode(state, lambda name: unpacked(tensors[name]))
