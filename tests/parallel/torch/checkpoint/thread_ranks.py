"""Ranks of a checkpoint as threads: they gather through a barrier, as processes would through a process group."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from herringbone_parallel.torch.checkpoint.peers import Peers


def run(size: int, function: Callable[[Peers], Any], hosts: Sequence[str | None] | None = None) -> list[Any]:
    """Call the function on each of `size` ranks, and return the results; raises what the first failing rank raised.

    `hosts` are the ranks' hosts, by default all this one.
    """
    barrier, answers = threading.Barrier(size), [b""] * size

    def peers_of(rank: int) -> Peers:
        def gather(value: Any) -> list[Any]:
            answers[rank] = pickle.dumps(value)
            barrier.wait(20)
            gathered = [pickle.loads(answer) for answer in answers]  # noqa: S301  our own
            barrier.wait(20)
            return gathered

        return Peers(rank, size, gather, host=hosts[rank] if hosts else None)

    with ThreadPoolExecutor(size) as pool:
        return [call.result() for call in [pool.submit(function, peers_of(rank)) for rank in range(size)]]
