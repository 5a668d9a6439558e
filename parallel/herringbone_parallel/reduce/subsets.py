"""Engines that sum over a part of a job's ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from herringbone_parallel.reduce.collectives import all_gather
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.listener import listen
from herringbone_parallel.reduce.joining import join, local_address


def join_subset(engine: Engine, ranks: Sequence[int]) -> Engine:
    """Return an engine over some of the ranks of `engine`.

        part = join_subset(enter(), [1, 3])         # on ranks 1 and 3, while ranks 0 and 2 join theirs

    Every rank of `engine` calls it at the same time and names its own part. `rank` and `size` of the result count
    inside the part, in the given order. Messages keep the numbers of the whole job. Raises `ParallelError` as `join`
    does.
    """
    settings = engine.settings
    # The first rank of a part plays rank 0's role: it listens, and the others connect to it.
    listener = listen(local_address(settings)) if settings.rank == ranks[0] else None
    own_address = listener.getsockname()[:2] if listener is not None else None
    addresses = [json.loads(data) for data in all_gather(engine, json.dumps(own_address).encode())]
    host, port = addresses[ranks[0]]
    part = replace(
        settings,
        rank=list(ranks).index(settings.rank),
        size=len(ranks),
        rendezvous=(host, port),
        job_rank=settings.rank,
    )
    return join(part, listener)


def join_lane(engine: Engine, publish: Callable[[str, str], object], find: Callable[[str], str]) -> Engine:
    """Return an engine over the ranks that have this rank's local rank on every host.

        lane = join_lane(engine, store.set, lambda key: store.get(key).decode())
        lane.all_reduce(slice_of_the_host_sum).wait()

    `engine` is the engine of the whole job, in which every host has the same number of ranks; all ranks call
    `join_lane`. `publish` writes a text to a store that all ranks share, and `find` waits for it. Messages name ranks
    by host and lane.
    """
    settings, topology = engine.settings, engine.topology
    lane, host = topology.local_rank(settings.rank), topology.host(settings.rank)
    key = f"herringbone/lane/{lane}"
    # Rank 0 is on the first host, so all ranks know that host's address. Each lane needs a port of its own there.
    listener = listen(settings.rendezvous[0]) if host == 0 else None
    if listener is not None:
        publish(key, str(listener.getsockname()[1]))
    rendezvous = settings.rendezvous[0], int(find(key))
    lane_settings = replace(
        settings, rank=host, size=topology.hosts, host=f"{settings.host}, lane {lane}", rendezvous=rendezvous
    )
    return join(lane_settings, listener)
