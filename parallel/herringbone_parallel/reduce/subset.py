"""Sums over some of a job's ranks: an engine of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.join import join, way_out
from herringbone_parallel.reduce.join.listener import listen


def join_part(whole: Engine, ranks: Sequence[int]) -> Engine:
    """Return an engine of these ranks of another one's; each rank of that one calls it, and names its own part.

        engine = join_part(enter(), [1, 3])         # on ranks 1 and 3, while 0 and 2 join theirs

    `rank` and `size` of the new engine count in the part, in the order given; messages give ranks the numbers that they
    have in the whole. Raises `ParallelError` as `join` does.
    """
    settings = whole.settings
    listener = listen(way_out(settings)) if settings.rank == ranks[0] else None
    own = listener.getsockname()[:2] if listener is not None else None
    places = [json.loads(data) for data in all_gather(whole, json.dumps(own).encode())]
    address, port = places[ranks[0]]
    part = replace(
        settings,
        rank=list(ranks).index(settings.rank),
        size=len(ranks),
        meet=(address, port),
        called=settings.rank,
    )
    return join(part, listener)
