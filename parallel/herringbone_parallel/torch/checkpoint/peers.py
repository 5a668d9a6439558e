"""The ranks that save or load a checkpoint together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from herringbone_contract.errors import ParallelError

Result = TypeVar("Result")


class Peers:
    """The ranks of a process group, or one process alone. Objects are pickled between ranks of one job only.

    peers = Peers.of_group()          # every rank; all of them must make it, save and load
    peers = Peers.alone()             # this process, without torch.distributed
    """

    def __init__(self, rank: int, size: int, gather: Callable[[Any], list[Any]], *, only_savers: bool = True) -> None:
        self.rank, self.size, self.gather = rank, size, gather
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

        only_savers = len(ranks) == dist.get_world_size()
        return cls(ranks.index(dist.get_rank()), len(ranks), gather, only_savers=only_savers)

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
        failure: Exception | None = None
        result: Any = None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  raised below, after the other ranks have the reason
            failure = error
        # Every rank takes part, whether it failed or not: the others wait for its answer.
        answers = self.gather((None if failure is None else f"{type(failure).__name__}: {failure}", result))
        if failure is not None:
            raise failure
        for rank, (text, _) in enumerate(answers):
            if text is not None:
                raise ParallelError(f"rank {rank} cannot {doing}: {text.removeprefix('ParallelError: ')}")
        # This rank's own result as it is: of the others, there is what pickling kept.
        return [result if rank == self.rank else other for rank, (_, other) in enumerate(answers)]


def host_name() -> str:
    """Return the name of this host: the job's name for it, otherwise the system's."""
    return os.environ.get("SM_CURRENT_HOST") or socket.gethostname()


class _Default:
    """The peers that `Peers.default` has made, and the world that they are of."""

    world: Any = None
    peers: Peers | None = None
