"""The samples of an epoch that are left, for whichever ranks go on. Pure.

An epoch has one order of samples, which depends on its seed and number only. Of `ranks` ranks, each takes every
`ranks`-th sample from its own number on, so after n samples each, the first `n * ranks` of the order are consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


def share(order: Sequence[int], consumed: int, ranks: int, rank: int, drop_last: bool) -> list[int]:
    """Return what a rank takes of an epoch of which the first `consumed` samples were used.

    >>> share([7, 3, 5, 1, 4], 2, 2, 1, drop_last=False), share([7, 3, 5, 1, 4], 2, 2, 1, drop_last=True)
    ([1, 7], [1])

    All ranks take equally many: the order's begin is repeated to fill the last round, or with `drop_last` what does not
    fill one is left out.
    """
    count = turns(len(order), consumed, ranks, drop_last)
    own = list(order[consumed + rank :: ranks][:count])
    return own + [order[place_of(len(order), consumed, ranks, rank, turn)] for turn in range(len(own), count)]


def repeated(left: int, ranks: int, rank: int, taken: int) -> int:
    """Return how many of `taken` samples a rank has twice: of the `left` ones, it takes what `share` returns.

    >>> [repeated(3, 2, rank, 2) for rank in range(2)], repeated(3, 2, 1, 1)
    ([0, 1], 0)
    """
    return max(0, min(taken, -(-left // ranks)) - len(range(rank, left, ranks)))


class Opened(NamedTuple):
    """A shard that a reader has begun: its number, and how many of its samples were used."""

    shard: int
    used: int


class Begun(NamedTuple):
    """An epoch of shards that other readers have begun: shards that are done, and those that are open."""

    done: frozenset[int] = frozenset()
    open: tuple[Opened, ...] = ()


class Reader(NamedTuple):
    """The place of one of so many readers: of its part, `done` shards are done, and `used` samples of the next used."""

    readers: int
    reader: int
    done: int = 0
    used: int = 0


def part(order: Sequence[int], begun: Begun, readers: int, reader: int) -> list[Opened]:
    """Return the shards that a reader takes of those that are left: open ones first.

    >>> part([3, 1, 0, 2], Begun(frozenset({3}), (Opened(0, 5),)), readers=2, reader=0)
    [Opened(shard=0, used=5), Opened(shard=2, used=0)]
    """
    return _left(order, begun)[reader::readers]


def merged(order: Sequence[int], begun: Begun, places: Iterable[Reader]) -> Begun:
    """Return what the readers have left together, which had begun with `begun`; a reader that is missing has no use.

    >>> merged([3, 1, 0, 2], Begun(), [Reader(2, 0, done=1, used=5)])
    Begun(done=frozenset({3}), open=(Opened(shard=0, used=5),))
    """
    done, opened = set(begun.done), {one.shard: one.used for one in begun.open}
    left = _left(order, begun)
    # One that has read nothing yet has no readers.
    for place in (one for one in places if one.readers):
        mine = left[place.reader :: place.readers]
        done |= {one.shard for one in mine[: place.done]}
        if place.used and place.done < len(mine):
            opened[mine[place.done].shard] = place.used
    return Begun(frozenset(done), tuple(Opened(shard, used) for shard, used in opened.items() if shard not in done))


def _left(order: Sequence[int], begun: Begun) -> list[Opened]:
    known = begun.done | {one.shard for one in begun.open}
    return [*begun.open, *(Opened(shard, 0) for shard in order if shard not in known)]


def turns(length: int, consumed: int, ranks: int, drop_last: bool) -> int:
    """Return how many samples each rank takes of an epoch of which the first `consumed` were used: those of `share`.

    >>> turns(5, 2, 2, drop_last=False), turns(5, 2, 2, drop_last=True)
    (2, 1)
    """
    return (length - consumed) // ranks if drop_last else -(-(length - consumed) // ranks)


def place_of(length: int, consumed: int, ranks: int, rank: int, turn: Any) -> Any:
    """Return the place in the epoch's order of the sample that a rank takes at a turn, or of an array of turns.

    >>> [place_of(5, 2, 2, 1, turn) for turn in range(2)]
    [3, 0]

    It finds single samples of `share`, which makes the list of all.
    """
    return (consumed + rank + ranks * turn) % length
