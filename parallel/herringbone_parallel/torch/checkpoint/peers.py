"""The ranks that save or load a checkpoint together."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError

Result = TypeVar("Result")


class Peers:
    """The ranks of a process group, or one process alone. Objects are pickled between ranks of one job only.

    peers = Peers.of_group()          # every rank; all of them must make it, save and load
    peers = Peers.alone()             # this process, without torch.distributed
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gather: Callable[[Any], list[Any]],
        *,
        begin_maxima: Callable[[Sequence[int]], Callable[[], list[int]]] | None = None,
        only_savers: bool = True,
        host: str | None = None,
    ) -> None:
        self.rank, self.size, self.gather = rank, size, gather
        # The job's name for this host, otherwise the system's.
        self.host = host or os.environ.get("SM_CURRENT_HOST") or socket.gethostname()
        # Begins to exchange a few integers, and returns the function that waits for the greatest of all ranks at each
        # place. A gather of objects costs a rank 6 ms of its processor, this 1 ms (16 ranks).
        self.begin_maxima = begin_maxima or self._gather_maxima
        # Whether no one else saves to the same folder meanwhile, so that unfinished saves in it are those of a job
        # that was killed.
        self.only_savers = only_savers
        # Made by the first save; it keeps the copies and the plan for the next one.
        self.saver: Any = None

    @classmethod
    def alone(cls, *, only_savers: bool = True) -> Peers:
        """Return the peers of a process that saves and loads by itself."""
        return cls(0, 1, lambda value: [value], only_savers=only_savers)

    @classmethod
    def of_group(cls, group: dist.ProcessGroup | None = None) -> Peers:
        """Return the peers of a new group with the ranks of `group`, by default all; each of them must call.

        The group is a new one, over gloo, because a save in the background gathers while training uses the other
        groups, and because NCCL carries no objects of the CPU.
        """
        ranks = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
        # Of a part of the ranks, only those take part: other groups may be made at the same time, and would meet them
        # under the same name.
        own = dist.new_group(ranks, backend="gloo", use_local_synchronization=group is not None)

        def gather(value: Any) -> list[Any]:
            gathered: list[Any] = [None] * len(ranks)
            dist.all_gather_object(gathered, value, group=own)
            return gathered

        def begin_maxima(numbers: Sequence[int]) -> Callable[[], list[int]]:
            tensor = torch.tensor(numbers, dtype=torch.int64)
            work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=own, async_op=True)

            def wait() -> list[int]:
                work.wait()
                return tensor.tolist()

            return wait

        only_savers = len(ranks) == dist.get_world_size()
        return cls(ranks.index(dist.get_rank()), len(ranks), gather, begin_maxima=begin_maxima, only_savers=only_savers)

    @classmethod
    def default(cls) -> Peers:
        """Return the peers of all ranks, or of one process without torch.distributed; made once a world."""
        world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        if _Default.world is not world or _Default.peers is None:
            _Default.world, _Default.peers = world, cls.alone() if world is None else cls.of_group()
        return _Default.peers

    def agree(self, call: Callable[[], Result], doing: str) -> Result:
        """Call on every rank and return the result; raise on all ranks when the call failed on one."""
        return self.agree_all(call, doing)[self.rank]

    def agree_all(self, call: Callable[[], Result], doing: str) -> list[Result]:
        """Like `agree`, with the results of all ranks."""
        return self.share(attempt(call), doing)

    def agree_same(
        self, call: Callable[[], Result], doing: str, key: Callable[[Result], str]
    ) -> tuple[Result, set[str]]:
        """Like `agree`, with the keys of all results: one where the ranks agree, after one small exchange."""
        tried = attempt(call)
        own = "" if tried.failure is not None else key(tried.result)
        # 56 bits, because the exchange has integers of 64 with a sign.
        number = int.from_bytes(hashlib.sha256(own.encode()).digest()[:7], "little")
        failed, greatest, least = self.begin_maxima((tried.failure is not None, number, -number))()
        if not failed and greatest == -least:
            return tried.result, {own}
        self.share(tried._replace(result=None), doing)
        return tried.result, set(self.gather(own))

    def _gather_maxima(self, numbers: Sequence[int]) -> Callable[[], list[int]]:
        return lambda: [max(column) for column in zip(*self.gather(list(numbers)), strict=True)]

    def share(self, tried: Attempt[Result], doing: str) -> list[Result]:
        """Return the results of all ranks; raise on all ranks when the attempt of one failed."""
        failure, result = tried.failure, tried.result
        # Every rank takes part, whether it failed or not: the others wait for its answer.
        answers = self.gather((None if failure is None else f"{type(failure).__name__}: {failure}", result))
        if failure is not None:
            raise failure
        for rank, (text, _) in enumerate(answers):
            if text is not None:
                raise ParallelError(f"rank {rank} cannot {doing}: {text.removeprefix('ParallelError: ')}")
        # This rank's own result as it is: of the others, there is what pickling kept.
        return [result if rank == self.rank else other for rank, (_, other) in enumerate(answers)]


class Attempt(NamedTuple, Generic[Result]):
    """The result of a call, or its error."""

    result: Any
    failure: Exception | None


def attempt(call: Callable[[], Result]) -> Attempt[Result]:
    """Call, and return the result or the error: the other ranks must hear of the error before it is raised."""
    try:
        return Attempt(call(), None)
    except Exception as error:  # noqa: BLE001  raised by `Peers.share`
        return Attempt(None, error)


class _Default:
    """The peers that `Peers.default` has made, and the world that they are of."""

    world: Any = None
    peers: Peers | None = None
