"""The advice that rank 0 says once in a job's log: about the links that were measured and the model that runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.advice import find, render
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import Cost, HostLink, host_link
from herringbone_parallel.core.sums.prediction import Predictor
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.core.sums.simulate import Sum
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.engine import Engine

# The first step makes what later ones use again.
_SEEN = 3


class Step(NamedTuple):
    """What was seen of a step: its gradients in the order in which they were final, and the seconds of its parts.

    `element` is the type of the most of them.
    """

    gradients: Sequence[Sum]
    forward_s: float
    backward_s: float
    element: str


class Starts:
    """Sees a step where only the starts and ends of its sums are seen: the third one, then calls `done` with it.

        starts = Starts([bucket.size for bucket in buckets], "float32", done)
        starts.started(0) ... starts.ended() ... starts.started(0)

    `sizes` are in bytes, in the order of the starts.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        element: str,
        done: Callable[[Step], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sizes, self._element, self._done, self._clock = tuple(sizes), element, done, clock
        self._steps = 0
        self._started: list[float] = []
        self._ended = 0.0

    def started(self, number: int) -> None:
        """A bucket is on its way; number 0 is a step's first."""
        if self._steps > _SEEN:
            return
        now = self._clock()
        if number == 0:
            self._steps += 1
            if self._steps > _SEEN and len(self._started) == len(self._sizes):
                self._done(step_of(self._sizes, self._element, self._started, self._ended, now))
            self._started = []
        self._started.append(now)

    def ended(self) -> None:
        """A sum is back; the last one of a step counts."""
        self._ended = self._clock() if self._steps <= _SEEN else self._ended


def step_of(sizes: Sequence[int], element: str, started: Sequence[float], ended: float, following: float) -> Step:
    """Return the step whose sums started then, where the last was back at `ended` and the next step began. Pure.

    >>> step_of([8, 4], "float32", started=[2.0, 3.0], ended=4.5, following=8.0)[:3]
    ([Sum(size=8, ready_s=2.0), Sum(size=4, ready_s=3.0)], 1.5, 3.0)

    All but the wait for sums counts as computing, two thirds of it as the backward.
    """
    compute_s = following - started[0] - max(0.0, ended - started[-1])
    backward_s = max(compute_s * 2 / 3, 1e-6)
    ready_s = [max(0.0, backward_s - (started[-1] - at)) for at in started]
    gradients = [Sum(size, at) for size, at in zip(sizes, ready_s, strict=True)]
    return Step(gradients, max(0.0, compute_s - backward_s), backward_s, element)


def begin(engine: Engine, cost: Cost, step: Step, write: Callable[[str], object] | None = None) -> threading.Thread:
    """Say the advice for this step, from a thread: to simulate a large model on slow links takes a second or two."""
    thread = threading.Thread(target=_say, args=(engine, cost, step, write or _print), name="herringbone-advice")
    thread.start()
    return thread


def lines(engine: Engine, cost: Cost, step: Step) -> tuple[str, ...]:
    """Return the advice, none where the links are too fast for their rate to show in what was measured."""
    try:
        cluster = cluster_of(engine.topology.hosts, len(engine.settings.servers), cost)
        predictor = Predictor(step.gradients, forward_s=step.forward_s, backward_s=step.backward_s)
        halves = engine.settings.wire is None and step.element == Element.FLOAT32.name.lower()
        return render(find(predictor, cluster, halves=halves))
    except ParallelError:
        return ()


def cluster_of(hosts: int, helpers: int, cost: Cost) -> Cluster:
    """Return the hosts of a job with the links that follow from what its sums cost. Pure.

    >>> cluster_of(4, 0, Cost(alpha_s=0.002, beta_s=0.75)).link
    HostLink(bytes_per_s=2.0, latency_s=0.001, message_s=0.0, duplex=1.0)

    What sums cost inside the hosts is a part of it.
    """
    link = host_link(cost, share=busiest_share(hosts, helpers)) if hosts > 1 else HostLink(1.0)
    return Cluster(hosts, link, helpers=helpers)


def _say(engine: Engine, cost: Cost, step: Step, write: Callable[[str], object]) -> None:
    for line in lines(engine, cost, step):
        write(f"herringbone: {line}\n")


def _print(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
