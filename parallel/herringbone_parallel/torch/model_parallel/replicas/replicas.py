"""The replicas of a pipeline: the ranks that hold the same partition, and reports of those that fail.

A replica waits for the others in each all-reduce. A replica that fails leaves the others waiting, and the error of a
collective does not name the rank that broke it. So ranks report through the job's key-value store, whose keys are

    failure         the first failure of the job, as text
    left/<rank>     this rank has ended its script
    broken          a collective has failed somewhere, so ranks that wait confirm that they are alive
    alive/<rank>    this rank waits, and is alive

and a rank that waits reads them every fifth of a second.
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

from herringbone_parallel.torch.model_parallel.failures import REPORT_SECONDS, PeerFailedError, described

Result = TypeVar("Result")
Future = torch.futures.Future[Any]

_POLL_SECONDS = 0.2
# The time in which ranks with a better explanation than a broken connection report it.
_REPORTS_SECONDS = 2.0
_FAILURE = "failure"
_LEFT = "left"
_BROKEN = "broken"
_ALIVE = "alive"


class Replicas:
    """The ranks of one partition: sums, copies and failures between them.

    `ranks` are the global ranks of the partition and `rank` is this one. `pipeline` are the ranks of this rank's
    pipeline, for messages. `group` carries gradients and nothing else, because they leave while modules run whose code
    may use collectives, too.
    """

    def __init__(
        self, ranks: Sequence[int], rank: int, pipeline: Sequence[int], group: dist.ProcessGroup, store: Store
    ) -> None:
        # A process group numbers its ranks in ascending order, and so do the indices here.
        self._ranks = sorted(ranks)
        self._rank = rank
        self._pipeline = list(pipeline)
        self._group = group
        self._store = store
        self._failure: str | None = None

    @property
    def size(self) -> int:
        """The number of replicas."""
        return len(self._ranks)

    @property
    def index(self) -> int:
        """The index of this rank's replica."""
        return self._ranks.index(self._rank)

    @property
    def in_several_partitions(self) -> bool:
        """Say whether the model has more than one partition."""
        return len(self._pipeline) > 1

    def start(self, collective: Callable[..., Any]) -> Future:
        """Start a collective of `torch.distributed` between the replicas; `wait` takes the future."""
        work = self._explained(lambda: collective(group=self._group, async_op=True))
        future: Future = work.get_future()
        return future

    def start_sum(self, tensor: torch.Tensor) -> Future:
        """Start adding up the tensor over the replicas, in place; the future's value is a list with the tensor."""
        return self.start(partial(dist.all_reduce, tensor))

    def wait(self, future: Future) -> Any:
        """Return the future's value; raises `PeerFailedError` within seconds when a rank of the job has failed."""
        # Not `future.wait`, which would block until the backend's timeout while a report of a failure is in the store.
        arrived = threading.Event()
        future.add_done_callback(lambda _: arrived.set())
        while not arrived.wait(_POLL_SECONDS):
            self._raise_reports(arrived)
        return self._explained(future.wait)

    def take_after(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        """Give every replica the values of the replica with this index."""
        source = self._ranks[index]
        under_way = []
        # All start before the first wait, so that small tensors do not cost a round trip each.
        for tensor in tensors:
            # A broadcast needs contiguous memory; the copy is written back below.
            dense = tensor.contiguous()
            start = partial(dist.broadcast, dense, source, group=self._group, async_op=True)
            under_way.append((self._explained(start), dense))
        for tensor, (work, dense) in zip(tensors, under_way, strict=True):
            self.wait(work.get_future())
            if dense is not tensor:
                tensor.copy_(dense)

    def gather(self, number: int) -> dict[int, int]:
        """Return the number that each replica passed, by its global rank."""
        gathered = [torch.zeros(1, dtype=torch.int64) for _ in self._ranks]
        tensor = torch.tensor([number])
        work = self._explained(lambda: dist.all_gather(gathered, tensor, group=self._group, async_op=True))
        self.wait(work.get_future())
        return {rank: int(part) for rank, part in zip(self._ranks, gathered, strict=True)}

    def object_of(self, index: int, content: Any) -> Any:
        """Return the object that the replica with this index passed; it is pickled, as between all ranks of a job."""
        source = self._ranks[index]
        data = torch.frombuffer(bytearray(pickle.dumps(content)), dtype=torch.uint8)
        size = torch.tensor([data.numel()])
        self.take_after(index, [size])
        if self._rank != source:
            data = torch.empty(int(size), dtype=torch.uint8)
        self.take_after(index, [data])
        return content if self._rank == source else pickle.loads(data.numpy().tobytes())  # noqa: S301  same trust domain

    def check(self) -> None:
        """Raise `PeerFailedError` after a failed step: some replicas may have reduced it and others not."""
        if self._failure is not None:
            raise PeerFailedError(
                f"an earlier step failed ({self._failure}), and the replicas of the model are no longer equal;"
                " resume from a checkpoint in a new job"
            )

    def report(self, failure: BaseException) -> None:
        """Report a failure to the ranks that wait for this one. The first report of the job is kept."""
        self._failure = described(failure)
        self._write(_FAILURE, f"rank {self._rank}, of the replica on ranks {self._pipeline}: {self._failure}")

    def leave(self) -> None:
        """Report to the ranks that still wait for this one that it has ended."""
        self._write(f"{_LEFT}/{self._rank}")

    def _write(self, key: str, text: str = "yes") -> None:
        try:
            # Sets the key only if it is missing or empty, so the first report is kept.
            self._store.compare_set(key, "", text)
        except RuntimeError:
            # The store is gone with the rank that keeps it. Ranks that wait notice that by themselves.
            return

    def _written(self, key: str) -> bool:
        try:
            # Works as `Store.check` does, which torch has from 2.3 on: a missing key becomes an empty one.
            return bool(self._store.compare_set(key, "", ""))
        except dist.DistError as error:
            raise PeerFailedError("lost contact with rank 0, which keeps the job's store") from error

    def _raise_reports(self, arrived: threading.Event) -> None:
        """Raise `PeerFailedError` if a rank reported a failure, or its end before `arrived` is set."""
        if self._written(_FAILURE):
            # The failed rank's own error should come first.
            time.sleep(REPORT_SECONDS)
            raise PeerFailedError(f"another replica failed: {self._store.get(_FAILURE).decode()}")
        if self._written(_BROKEN):
            self._write(f"{_ALIVE}/{self._rank}")
        left = [rank for rank in self._ranks if rank != self._rank and self._written(f"{_LEFT}/{rank}")]
        # The last message of a rank that has left may still be on its way.
        if left and not arrived.wait(_REPORTS_SECONDS):
            raise PeerFailedError(
                f"rank {left[0]} has ended while rank {self._rank} waits for its gradients: every replica has to make"
                " as many steps. Give each as many batches, as DistributedSampler does, or train inside"
                " `with model.join():`"
            )

    def _explained(self, collective: Callable[[], Result]) -> Result:
        """Run a collective; turn its failure into a `PeerFailedError` that names the lost rank if it can be known."""
        try:
            return collective()
        except RuntimeError as error:
            # The backend's error for a peer that is gone, without its rank. Ranks that know more report it in time.
            self._write(_BROKEN)
            until = time.monotonic() + _REPORTS_SECONDS
            while time.monotonic() < until:
                # An event that is never set: this collective will not arrive any more.
                self._raise_reports(threading.Event())
                time.sleep(_POLL_SECONDS)
            # Ranks that wait have confirmed that they are alive. A silent rank is lost, or it computes and does not
            # wait yet; with several of them nobody can tell.
            silent = [rank for rank in self._ranks if not self._written(f"{_ALIVE}/{rank}")]
            lost = f"rank {silent[0]}" if len(silent) == 1 else f"one of ranks {silent or self._ranks}"
            raise PeerFailedError(f"the all-reduce with {lost} broke: {str(error).splitlines()[0]}") from error


def job_store() -> Store:
    """Return the part of the job's key-value store in which ranks report failures."""
    return PrefixStore("smp", dist.distributed_c10d._get_default_store())
