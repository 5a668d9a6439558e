"""A dataset of whole files, which ranks and workers divide, with a record of those that are done.

order of shards, from (seed, epoch)    3 0 4 1 2 5
2 ranks, each with 1 worker            rank 0: 3 4 2    rank 1: 0 1 5
a checkpoint                           rank 0: 1 done, 7 samples of the next one used; rank 1: 0 done, 9 used
on 3 ranks                             3 is done; 4 goes on at 7, 0 at 9; 1 2 5 are divided anew
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core import position
from herringbone_parallel.core.position import Begun, Opened, Reader
from herringbone_parallel.torch.position import random_state


class Shards(IterableDataset[Any]):
    """The samples of some files, each read from its begin to its end by one worker of one rank.

        shards = Shards(sorted(glob("train/*.jsonl")), lambda path: map(json.loads, open(path)), seed=7)
        loader = DataLoader(shards, batch_size=16, num_workers=2)
        for epoch in range(training.epoch, epochs):
            shards.set_epoch(epoch)
            for batch in loader:

    `read(path)` yields the samples of a file, the same ones in the same order at each call; it may augment them, and
    draw its order from the random numbers before its first sample. The order of the files depends on the seed and the
    epoch only. After a restart, also on another number of ranks or workers, the samples that completed steps have used
    are read and passed over in the open files, and files that are done are not opened. Ranks have as many samples as
    their files: where those differ, the numbers of batches differ. `num_replicas` and `rank` are those of
    torch.distributed by default.
    """

    def __init__(
        self,
        paths: Sequence[Any],
        read: Callable[[Any], Iterable[Any]],
        *,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        is_shared = dist.is_available() and dist.is_initialized()
        self.num_replicas = num_replicas or (dist.get_world_size() if is_shared else 1)
        self.rank = rank if rank is not None else (dist.get_rank() if is_shared else 0)
        if not 0 <= self.rank < self.num_replicas:
            raise ParallelError(f"Shards(rank={self.rank}) of {self.num_replicas}: ranks begin at 0")
        self._paths, self._read, self._seed, self._shuffle = list(paths), read, seed, shuffle
        # Jobs may have the same files in different folders.
        names = repr([Path(str(path)).name for path in self._paths])
        self._names = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        self.epoch = 0
        # The epoch that is open, how it began, and the place of this reader in it.
        self._of_epoch, self._begun, self._place = 0, Begun(), self._reader()
        self._goes_on = False

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass have the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        reader = self._reader()
        if not (self._goes_on and self._of_epoch == self.epoch):
            self._of_epoch, self._begun, self._place = self.epoch, Begun(), reader
        self._goes_on = False
        place = self._place
        if place.readers == 0:
            place = reader
        left = position.part(self._order(), self._begun, place.readers, place.reader)[place.done :]
        for done, opened in enumerate(left, place.done):
            used = place.used if done == place.done and place.used else opened.used
            self._place = place._replace(done=done, used=used)
            for sample in self._samples(opened.shard, used):
                used += 1
                self._place = place._replace(done=done, used=used)
                yield sample
        self._place = place._replace(done=place.done + len(left), used=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this reader; it fits all readers of the same number."""
        return {
            "shards": len(self._paths),
            "names": self._names,
            "epoch": self._of_epoch,
            "done": sorted(self._begun.done),
            "open": [list(opened) for opened in self._begun.open],
            "place": list(self._place),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass of the same epoch go on from a place."""
        if (state["shards"], state["names"]) != (len(self._paths), self._names):
            raise ParallelError(
                f"the checkpoint is of other data: {state['shards']} shards, and now {len(self._paths)}, or of the same"
                " files in another order: give Shards the same paths, sorted"
            )
        self._of_epoch, self._place = state["epoch"], Reader(*state["place"])
        self._begun = _begun(state)
        self._goes_on = True

    def merged(self, states: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Return the state with which another number of readers goes on."""
        states = list(states)
        order = self._order(states[0]["epoch"])
        left = position.merged(order, _begun(states[0]), (Reader(*state["place"]) for state in states))
        opened = [list(one) for one in left.open]
        return {**states[0], "done": sorted(left.done), "open": opened, "place": list(Reader(0, 0))}

    def _reader(self) -> Reader:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return Reader(self.num_replicas * workers, worker * self.num_replicas + self.rank)

    def _order(self, epoch: int | None = None) -> list[int]:
        if not self._shuffle:
            return list(range(len(self._paths)))
        generator = torch.Generator().manual_seed(self._seed + (self.epoch if epoch is None else epoch))
        return torch.randperm(len(self._paths), generator=generator).tolist()

    def _samples(self, shard: int, used: int) -> Iterator[Any]:
        """Yield the samples of a shard behind the used ones."""
        info = get_worker_info()
        numbers = self._seed, self._of_epoch, shard
        # The begin of a file, and what is passed over, draw none of the numbers of the process.
        outside = random_state.take()
        random_state.seed(*numbers, 0)
        samples = iter(self._read(self._paths[shard]))
        if info is None:
            first = list(islice(samples, 1))
            for _ in islice(samples, max(used - 1, 0)):
                pass
            random_state.restore(outside)
            yield from first if not used else ()
            yield from samples
            return
        for number in count():
            random_state.seed(*numbers, number)
            for sample in islice(samples, 1):
                if number >= used:
                    yield sample
                break
            else:
                return


def _begun(state: dict[str, Any]) -> Begun:
    return Begun(frozenset(state["done"]), tuple(Opened(*one) for one in state["open"]))
