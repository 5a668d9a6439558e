"""A rank's file in a checkpoint of another library: the places of its loaders, and its random numbers.

    write(folder, loaders)      with the library's own files
    resume(folder, loaders)     after the library has loaded its own

The ranks are torch's: a library may count the ranks of one pipeline as one. On another number of ranks, all take the
order of the lowest rank, and random numbers that nobody has drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from torch import distributed as dist

from herringbone_contract.checkpoint.roll_back import passed_over
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import write_whole
from herringbone_parallel.job_folders import CHECKPOINT_VARIABLE
from herringbone_parallel.torch.position import prepared, random_state
from herringbone_parallel.torch.position.prepared import Numbers
from herringbone_parallel.torch.position.random_state import Packed, RandomState
from herringbone_parallel.torch.position.tracker import Place

NONE_SAVED = "this checkpoint has no place in the data: the script goes on in the way of its library"
_NAME = "herringbone-place-{}.msgpack"


class RankPlace(msgspec.Struct, frozen=True):
    """The state with which a rank goes on.

    Loaders have the names of parts, or their numbers in the order of the script. `buffers` are those of each model that
    the rank changes by itself.
    """

    random: RandomState
    loaders: dict[str, Place]
    ranks: int
    buffers: dict[str, dict[str, Packed]] = {}

    def numbers(self, rank: int, ranks: int) -> Numbers:
        """Return the random numbers for a rank: its own, or on another number of ranks such as nobody has drawn."""
        return Numbers(partial(random_state.go_on, self.random, *(() if self.ranks == ranks else (rank,))))


class _Process:
    """The random numbers after the last completed step; None before the first one."""

    numbers: Callable[[], RandomState] | None = None


def completed() -> None:
    """Count a completed step of an optimizer."""
    _Process.numbers = random_state.remember()
    for tracker in prepared.followed():
        tracker.step()


def take(loaders: Sequence[Any]) -> RankPlace | None:
    """Return what this rank goes on with; None, and a notice, where nobody could."""
    trackers = [prepared.tracker_of(loader) for loader in loaders]
    followed = [tracker for tracker in trackers if tracker is not None]
    if not followed:
        return None
    if _Process.numbers is None and any(tracker.taken for tracker in followed):
        notice("the place in the data is not kept: no step of an optimizer that accelerate has prepared")
        return None
    places = kept(
        lambda: {
            str(number): place
            for number, (tracker, loader) in enumerate(zip(trackers, loaders, strict=True))
            if tracker is not None and (place := tracker.of_checkpoint(loader.iteration)) is not None
        }
    )
    if places is None:
        return None
    # Numbers that were drawn since the step belong to batches that come again.
    is_ahead = any(tracker.is_begun and tracker.is_ahead for tracker in followed)
    numbers = _Process.numbers if is_ahead and _Process.numbers is not None else random_state.remember()
    return RankPlace(numbers(), places, _ranks()[1])


def kept(places: Callable[[], dict[str, Place]]) -> dict[str, Place] | None:
    """Return the places of loaders; None, and a notice, for an order that nobody can repeat."""
    try:
        return places()
    except ParallelError as error:
        notice(f"the place in the data is not kept: {error}")
        return None


def write(folder: str | os.PathLike[str], loaders: Sequence[Any]) -> None:
    """Write this rank's file, or remove that of an earlier save."""
    path, place = Path(folder, _NAME.format(_ranks()[0])), take(loaders)
    if place is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, msgspec.msgpack.encode(place), mode=0o666)


def read(folder: str | os.PathLike[str], rank: int, ranks: int) -> RankPlace | None:
    """Return the content for this rank; None where the checkpoint has none."""
    own = Path(folder, _NAME.format(rank))
    others = sorted(Path(folder).glob(_NAME.format("*")), key=lambda path: (len(path.name), path.name))
    places = [msgspec.msgpack.decode(path.read_bytes(), type=RankPlace) for path in [own] if path.exists()]
    if places and places[0].ranks == ranks:
        return places[0]
    if not others:
        return None
    # All take the same one, and none its random numbers: also a rank that has not saved.
    return msgspec.structs.replace(msgspec.msgpack.decode(others[0].read_bytes(), type=RankPlace), ranks=0)


def resume(folder: str | os.PathLike[str], loaders: Sequence[Any]) -> bool:
    """Let loaders go on from a checkpoint's places; False where it has none."""
    rank, ranks = _ranks()
    place = read(folder, rank, ranks)
    if place is None:
        notice(NONE_SAVED)
        return False
    numbers = place.numbers(rank, ranks)
    for number, loader in enumerate(loaders):
        known, tracker = place.loaders.get(str(number)), prepared.tracker_of(loader)
        if known is not None and tracker is not None:
            tracker.go_on(known, numbers)
    return True


def _ranks() -> tuple[int, int]:
    is_shared = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if is_shared else (0, 1)


@cache
def notice(text: str) -> None:
    """Print a notice once."""
    print(f"herringbone: {text}", file=sys.stderr, flush=True)


def notice_unpassed() -> None:
    """Print that the data of a `roll_back` is used again, where a loop begins without a place."""
    if passed_over(os.environ.get(CHECKPOINT_VARIABLE))[0]:
        notice(
            "roll_back: the data is NOT passed over: there is no checkpoint from before the fault with a place in it"
        )
