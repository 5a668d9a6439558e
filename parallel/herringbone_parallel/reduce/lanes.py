"""An engine for one lane alone: where something else has summed inside each host, and ranks hold a slice of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.join.join import join
from herringbone_parallel.reduce.join.listener import listen


def join_lane(engine: Engine, publish: Callable[[str, str], object], find: Callable[[str], str]) -> Engine:
    """Join the ranks of the other hosts that have this one's place on theirs; all ranks of the job call it.

        lane = join_lane(engine, store.set, lambda key: store.get(key).decode())
        lane.all_reduce(slice_of_the_host_s_sum).wait()

    `engine` is the job's; every host has as many ranks. `publish` and `find` are a place where all ranks can leave a
    word; `find` waits for it. Messages call ranks by their host and lane.
    """
    settings, topology = engine.settings, engine.topology
    lane, host = topology.local_rank(settings.rank), topology.host(settings.rank)
    key = f"herringbone/lane/{lane}"
    # Rank 0's host is the first: all know its address, and each lane has a port of its own there.
    listener = listen(settings.meet[0]) if host == 0 else None
    if listener is not None:
        publish(key, str(listener.getsockname()[1]))
    meet = settings.meet[0], int(find(key))
    own = replace(settings, rank=host, size=topology.hosts, host=f"{settings.host}, lane {lane}", meet=meet)
    return join(own, listener)
