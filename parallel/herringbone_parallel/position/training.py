"""Save everything that a training goes on with, and go on with it: what TensorFlow and MXNet have in common.

rank 0 writes   <part>/<name>           arrays of each part; its own count
                .own/<rank>/<part>/...  where those of a rank differ, such as statistics of batch normalisation
                .own/<rank>/.numbers    values of its parts, among them the place in the data; its random numbers
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from herringbone_contract.checkpoint.verification import checkpoint_path, newest_complete, newest_tag, read_manifest
from herringbone_contract.errors import ParallelError
from herringbone_parallel.job_folders import training_folder
from herringbone_parallel.position.checkpoint import read, write
from herringbone_parallel.position.parts import Array, Kept, Part, drawn, packed, unpacked

Result = TypeVar("Result")
_NUMBERS = ".numbers"


class Peers(NamedTuple):
    """The ranks of a training; `gather` returns the bytes of all."""

    rank: int = 0
    size: int = 1
    gather: Callable[[bytes], list[bytes]] = lambda data: [data]

    def agree(self, call: Callable[[], Result], doing: str) -> list[Result]:
        """Call on every rank, and return the results of all; raise on all ranks where one failed."""
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001  raised when all ranks have heard of it
            failure = error
        text = None if failure is None else str(failure)
        answers = [msgspec.msgpack.decode(one) for one in self.gather(msgspec.msgpack.encode([text, result]))]
        if failure is not None:
            raise failure
        for rank, (said, _) in enumerate(answers):
            if said is not None:
                raise ParallelError(f"rank {rank} cannot {doing}: {said}")
        return [answer for _, answer in answers]


class Found(NamedTuple):
    """A checkpoint that was read: its arrays, and what is of its parts and of this rank."""

    arrays: dict[str, Array]
    extra: dict[str, Any]
    own: str
    numbers: dict[str, Any]
    is_same: bool


class Saver:
    """Saves and restores parts by name; every rank makes, saves and restores."""

    def __init__(self, folder: str | os.PathLike[str] | None, parts: dict[str, Part], library: str) -> None:
        self._folder, self.parts, self._library = folder, parts, library

    def save(self, tag: str, extra: dict[str, Any], peers: Peers) -> None:
        """Write the checkpoint of a tag. Raises `ParallelError` on every rank where one fails; nothing is left then."""
        folder, arrays, own, numbers = training_folder(self._folder), {}, {}, {}

        def take() -> dict[str, int]:
            for name, part in self.parts.items():
                numbers[name] = part.values()
                arrays.update({f"{name}/{key}": value for key, value in part.arrays().items()})
                own.update({f"{name}/{key}": value for key, value in part.own().items()})
            return {key: _sum(value) for key, value in own.items()} if peers.size > 1 else {}

        sums = peers.agree(take, "save")
        other = {key: packed(own[key]) for key, value in sums[peers.rank].items() if value != sums[0].get(key)}
        mine: list[Any] = [msgspec.msgpack.encode(numbers), other]
        everyone = peers.agree(lambda: mine, "save")
        for rank, (its, differing) in enumerate(everyone):
            arrays[f".own/{rank}/{_NUMBERS}"] = np.frombuffer(its, np.uint8)
            arrays |= {f".own/{rank}/{key}": unpacked(value) for key, value in differing.items()}

        def written() -> None:
            if peers.rank == 0:
                write(folder, tag, {**arrays, **own}, extra, ranks=peers.size, library=self._library)

        peers.agree(written, "save")

    def find(self, tag: str | None, peers: Peers) -> Found | None:
        """Read the newest complete checkpoint, or that of a tag; None where no rank finds one."""
        folder = training_folder(self._folder)

        def search() -> str | None:
            if tag is not None or newest_tag(folder) is None:
                return tag
            newest, problem = newest_complete(folder)
            if problem is not None:
                warnings.warn(f"{problem}; this training goes on from {newest.tag!r}", stacklevel=4)
            return newest.tag

        tags = peers.agree(search, "resume")
        if (first := tags[0]) is None:
            return None
        if len(set(tags)) > 1:
            raise ParallelError(f"ranks find different checkpoints, {tags}: bring the files of rank 0 to all hosts")
        found: list[Found] = []
        peers.agree(lambda: found.append(self._read(folder, first, peers)), "resume")
        return found[0]

    def put(self, found: Found, names: list[str], peers: Peers) -> None:
        """Restore some of the parts. Raises `ParallelError` where the checkpoint does not fit."""

        def put() -> None:
            for name in names:
                key, own = f"{name}/", f"{found.own}{name}/"
                part = {path[len(key) :]: value for path, value in found.arrays.items() if path.startswith(key)}
                part |= {path[len(own) :]: value for path, value in found.arrays.items() if path.startswith(own)}
                self.parts[name].put(Kept(part, found.numbers[name]))
                if not found.is_same:
                    seed = found.numbers, found.extra["step"], peers.rank, name
                    self.parts[name].reseed(partial(drawn, seed))

        peers.agree(put, "resume")

    def _read(self, folder: Path, tag: str, peers: Peers) -> Found:
        path = checkpoint_path(folder, tag)
        manifest = read_manifest(path)
        extra = manifest.extra.get("extra")
        if f".own/0/{_NUMBERS}" not in manifest.tensors or not isinstance(extra, dict):
            raise ParallelError(f"the checkpoint {tag!r} has no place in the data: Training.save wrote it not")
        arrays = read(path, manifest)
        is_same = manifest.world_size == peers.size
        own = f".own/{peers.rank if is_same else 0}/"
        numbers = msgspec.msgpack.decode(arrays[own + _NUMBERS].tobytes(), strict=False)
        if missing := [name for name in self.parts if name not in numbers]:
            raise ParallelError(f"the checkpoint {tag!r} has no part {missing[0]!r}; it has {', '.join(numbers)}")
        return Found(arrays, extra, own, numbers, is_same)


def _sum(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
