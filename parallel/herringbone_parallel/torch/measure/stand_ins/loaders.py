"""Let data loaders of a script read their real data while it is measured, in this process, and time them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from herringbone_parallel.torch.measure.operations import tensors_of
from herringbone_parallel.torch.measure.recorder import Recorder
from herringbone_parallel.torch.measure.replacing import replaced

_BATCHES = 8
_signature = inspect.signature(DataLoader.__init__)


@dataclass
class Loading:
    """The batches that the loaders of a script made, and the workers they asked for."""

    # Of the last loader's batches.
    seconds: list[float] = field(default_factory=list)
    # The moment of each batch, its samples, and those of the loader's data set.
    batches: list[tuple[int, int | None, int | None]] = field(default_factory=list)
    workers: int = 0

    # The last loader that the script has asked for a batch.
    iterator: Any = None

    def batch_seconds(self) -> float:
        """Return the least time of a batch, which other work on this machine disturbs least; 0 without a loader.

        Asks the script's loader for more batches, for a second at most, because two steps have few. Call it after the
        script has ended.
        """
        end = time.perf_counter() + 1
        while self.iterator is not None and len(self.seconds) < _BATCHES and time.perf_counter() < end:
            start = time.perf_counter()
            try:
                next(self.iterator)
            except Exception:  # noqa: BLE001  the script has ended, so its data set may fail
                break
            self.seconds.append(time.perf_counter() - start)
        return min(self.seconds, default=0.0)


@contextmanager
def reading(recorder: Recorder, loading: Loading) -> Iterator[None]:
    """Serve `DataLoader` in the `with` block: without workers, and with real values."""
    create, advance = DataLoader.__init__, _BaseDataLoaderIter.__next__

    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = dict(_signature.bind(self, *args, **kwargs).arguments)
        bound.update(bound.pop("kwargs", {}))
        loading.workers = max(loading.workers, bound.get("num_workers") or 0)
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            bound.pop(name, None)
        bound["pin_memory"] = False
        bound.pop("self")
        create(self, **bound)

    def advanced(self: Any) -> Any:
        start, moment = time.perf_counter(), len(recorder.calls)
        with recorder.aside():
            batch = advance(self)
        if self is not loading.iterator:
            # Batches of an evaluation say nothing about those of the training.
            loading.iterator, loading.seconds = self, []
        loading.seconds.append(time.perf_counter() - start)
        tensors = tensors_of(batch)
        for tensor in tensors:
            recorder.note_input(tensor)
        sizes = [tensor.shape[0] for tensor in tensors if tensor.dim()]
        loading.batches.append((moment, sizes[0] if sizes else None, _length(self)))
        recorder.begin_batch(moment)
        return batch

    with replaced(DataLoader, __init__=created), replaced(_BaseDataLoaderIter, __next__=advanced):
        yield


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator._dataset)
    except (TypeError, NotImplementedError):
        # A data set that is a stream has no length.
        return None
