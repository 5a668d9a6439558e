"""Advice that rank 0 logs once per job, for the links that were measured and the model that runs."""

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

# The first step allocates memory that later ones reuse, so a later step is timed.
_TIMED_STEP = 3


class Step(NamedTuple):
    """One timed step: its gradients in the order in which they became final, and the seconds of its parts.

    `element` is the element type of most gradients.
    """

    gradients: Sequence[Sum]
    forward_s: float
    backward_s: float
    element: str


class SumObserver:
    """Times the third step by the starts and ends of its sums, then calls `done` with it.

        observer = SumObserver([bucket.size for bucket in buckets], "float32", done)
        observer.started(0) ... observer.ended() ... observer.started(0)

    `sizes` are in bytes, in the order of the starts. `torch` has an observer of single gradients; a traced function of
    TensorFlow shows its sums only.
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
        """Note the start of a bucket's sum; number 0 is the first of a step."""
        if self._steps > _TIMED_STEP:
            return
        now = self._clock()
        if number == 0:
            self._steps += 1
            # A step that raised halfway has fewer starts than buckets and is ignored.
            if self._steps > _TIMED_STEP and len(self._started) == len(self._sizes):
                self._done(step_of(self._sizes, self._element, self._started, self._ended, now))
            self._started = []
        self._started.append(now)

    def ended(self) -> None:
        """Note the end of a sum; the last one of a step counts."""
        self._ended = self._clock() if self._steps <= _TIMED_STEP else self._ended


def step_of(sizes: Sequence[int], element: str, started: Sequence[float], ended: float, following: float) -> Step:
    """Return the step whose sums started at these times, until `following`, the start of the next step. Pure.

    >>> step_of([8, 4], "float32", started=[2.0, 3.0], ended=4.5, following=8.0)[:3]
    ([Sum(size=8, ready_s=2.0), Sum(size=4, ready_s=3.0)], 1.5, 3.0)

    `ended` is the end of the last sum. All time except the wait for sums counts as computing, two thirds of that as the
    backward.
    """
    compute_s = following - started[0] - max(0.0, ended - started[-1])
    backward_s = max(compute_s * 2 / 3, 1e-6)
    ready_s = [max(0.0, backward_s - (started[-1] - at)) for at in started]
    gradients = [Sum(size, at) for size, at in zip(sizes, ready_s, strict=True)]
    return Step(gradients, max(0.0, compute_s - backward_s), backward_s, element)


def log_advice(
    engine: Engine, cost: Cost, step: Step, write: Callable[[str], object] | None = None
) -> threading.Thread:
    """Start a thread that writes the advice for this step to standard error, or with `write`."""
    # A thread, because simulating a large model on slow links takes a second or two.
    thread = threading.Thread(target=_log, args=(engine, cost, step, write or _print), name="herringbone-advice")
    thread.start()
    return thread


def lines(engine: Engine, cost: Cost, step: Step) -> tuple[str, ...]:
    """Return the lines of advice; none if the links are too fast for their rate to show in the measurement."""
    try:
        cluster = cluster_of(engine.topology.hosts, len(engine.settings.servers), cost)
        predictor = Predictor(step.gradients, forward_s=step.forward_s, backward_s=step.backward_s)
        halves = engine.settings.wire is None and step.element == Element.FLOAT32.name.lower()
        return render(find(predictor, cluster, halves=halves))
    except ParallelError:
        return ()


def cluster_of(hosts: int, helpers: int, cost: Cost) -> Cluster:
    """Return the hosts of a job, with the links that follow from the cost of its sums. Pure.

    >>> cluster_of(4, 0, Cost(alpha_s=0.002, beta_s=0.75)).link
    HostLink(bytes_per_s=2.0, latency_s=0.001, message_s=0.0, duplex=1.0)

    The cost includes the sums inside the hosts.
    """
    link = host_link(cost, share=busiest_share(hosts, helpers)) if hosts > 1 else HostLink(1.0)
    return Cluster(hosts, link, helpers=helpers)


def _log(engine: Engine, cost: Cost, step: Step, write: Callable[[str], object]) -> None:
    for line in lines(engine, cost, step):
        write(f"herringbone: {line}\n")


def _print(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
