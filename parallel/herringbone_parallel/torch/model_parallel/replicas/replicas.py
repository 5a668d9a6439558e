"""The replicas of a pipeline: the ranks that hold this rank's partition too, and news of those that fail.

A replica waits for the others in each all-reduce. One that fails leaves them waiting, and of a collective's error one
cannot see who broke it. So whoever fails writes it into the job's store, and whoever waits reads there.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from herringbone_parallel.torch.model_parallel.failures import FIRST_WORD_SECONDS, PeerFailedError, described

Result = TypeVar("Result")
Future = torch.futures.Future[Any]

_POLL_SECONDS = 0.2
# For the news to come from those that know more than that a connection broke.
_NEWS_SECONDS = 2.0
_FAILURE = "failure"
_LEFT = "left"
_BROKEN = "broken"
_ALIVE = "alive"


class Replicas:
    """The ranks of one partition. `ranks` are global, `me` is this one; `pipeline` names its own pipeline in messages.

    `group` carries gradients and nothing else: they leave while a step's modules run, which may talk themselves.
    """

    def __init__(
        self, ranks: Sequence[int], me: int, pipeline: Sequence[int], group: dist.ProcessGroup, store: Store
    ) -> None:
        self._ranks = sorted(ranks)
        self._me = me
        self._pipeline = list(pipeline)
        self._group = group
        self._store = store
        self._failure: str | None = None

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def index(self) -> int:
        """The place of this rank's replica among them."""
        return self._ranks.index(self._me)

    @property
    def in_several_partitions(self) -> bool:
        """Say whether there are other ranks, of other partitions."""
        return len(self._pipeline) > 1

    def start_sum(self, tensor: torch.Tensor) -> Future:
        """Start adding up the tensor over the replicas, in place; the future's value is a list of it."""
        work = self._heard(lambda: dist.all_reduce(tensor, group=self._group, async_op=True))
        future: Future = work.get_future()
        return future

    def wait(self, future: Future) -> Any:
        """Return the future's value; raises `PeerFailedError` within seconds when a rank of the job has failed."""
        arrived = threading.Event()
        future.add_done_callback(lambda _: arrived.set())
        while not arrived.wait(_POLL_SECONDS):
            self._raise_news(arrived)
        return self._heard(future.wait)

    def take_after(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        """Give every replica the values of the one with this index."""
        source = self._ranks[index]
        under_way = []
        for tensor in tensors:
            dense = tensor.contiguous()
            start = partial(dist.broadcast, dense, source, group=self._group, async_op=True)
            under_way.append((self._heard(start), dense))
        for tensor, (work, dense) in zip(tensors, under_way, strict=True):
            self.wait(work.get_future())
            if dense is not tensor:
                tensor.copy_(dense)

    def gather(self, number: int) -> dict[int, int]:
        """Return the number that each replica passed, by its global rank."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in self._ranks]
        own = torch.tensor([number])
        self.wait(self._heard(lambda: dist.all_gather(found, own, group=self._group, async_op=True)).get_future())
        return {rank: int(tensor) for rank, tensor in zip(self._ranks, found, strict=True)}

    def object_of(self, index: int, content: Any) -> Any:
        """Return what the replica with this index passed; objects are pickled, as between all ranks of a job."""
        source = self._ranks[index]
        data = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        size = torch.tensor([data.numel()])
        self.take_after(index, [size])
        if self._me != source:
            data = torch.empty(int(size), dtype=torch.uint8)
        self.take_after(index, [data])
        return content if self._me == source else pickle.loads(data.numpy().tobytes())  # noqa: S301  same trust domain

    def check(self) -> None:
        """Raise `PeerFailedError` when a step has failed: what the replicas have reduced since differs."""
        if self._failure is not None:
            raise PeerFailedError(
                f"an earlier step failed ({self._failure}), and the replicas of the model are no longer equal;"
                " resume from a checkpoint in a new job"
            )

    def tell(self, failure: BaseException) -> None:
        """Let the ranks that wait for this one know why it does not come; the first word stays."""
        self._failure = described(failure)
        self._write(_FAILURE, f"rank {self._me}, of the replica on ranks {self._pipeline}: {self._failure}")

    def leave(self) -> None:
        """Let those that still wait for this rank know that it has ended."""
        self._write(f"{_LEFT}/{self._me}")

    def _write(self, key: str, text: str = "yes") -> None:
        try:
            self._store.compare_set(key, "", text)
        except RuntimeError:
            # The store is gone with the rank that keeps it, and who waits has heard of that.
            return

    def _written(self, key: str) -> bool:
        try:
            # What `check` would say, which torch has from 2.3: a key that is missing becomes an empty one.
            return bool(self._store.compare_set(key, "", ""))
        except dist.DistError as error:
            raise PeerFailedError("lost contact with rank 0, which keeps the job's store") from error

    def _raise_news(self, arrived: threading.Event) -> None:
        if self._written(_FAILURE):
            time.sleep(FIRST_WORD_SECONDS)
            raise PeerFailedError(f"another replica failed: {self._store.get(_FAILURE).decode()}")
        if self._written(_BROKEN):
            self._write(f"{_ALIVE}/{self._me}")
        left = [rank for rank in self._ranks if rank != self._me and self._written(f"{_LEFT}/{rank}")]
        # What it had sent before it left may still be on its way.
        if left and not arrived.wait(_NEWS_SECONDS):
            raise PeerFailedError(
                f"rank {left[0]} has ended while rank {self._me} waits for its gradients: every replica has to make as"
                " many steps. Give each as many batches, as DistributedSampler does, or train inside"
                " `with model.join():`"
            )

    def _heard(self, talk: Callable[[], Result]) -> Result:
        try:
            return talk()
        except RuntimeError as error:
            # The backend's word for a peer that is gone. It does not say which: those who know have seconds to tell.
            self._write(_BROKEN)
            until = time.monotonic() + _NEWS_SECONDS
            while time.monotonic() < until:
                self._raise_news(threading.Event())
                time.sleep(_POLL_SECONDS)
            # Who waits has said that it lives; who does not may be at work, and hears of it later.
            silent = [rank for rank in self._ranks if not self._written(f"{_ALIVE}/{rank}")]
            lost = f"rank {silent[0]}" if len(silent) == 1 else f"one of ranks {silent or self._ranks}"
            raise PeerFailedError(f"the all-reduce with {lost} broke: {str(error).splitlines()[0]}") from error


def job_store() -> Store:
    """Return the part of the job's key-value store in which ranks tell of failures."""
    return PrefixStore("smp", dist.distributed_c10d._get_default_store())
