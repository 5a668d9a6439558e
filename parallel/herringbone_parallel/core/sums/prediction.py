"""Predicts the step time of every way to sum gradients between these hosts, for this model.

    gradients = evenly(100_000_000, backward_s=0.2)     # or each gradient's bytes and ready time, if they are known
    predictor = Predictor(gradients, forward_s=0.1, backward_s=0.2)
    predictor.run("helpers", Cluster(workers=4, helpers=4, link=link)).step_s

Each scheme is simulated as it would run: its buckets are planned for its own cost, and they leave while the backward
goes on. Schemes are compared by the time of a step rather than of a sum, because a step hides most of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.buckets import final_times, plan_buckets
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import choose_window
from herringbone_parallel.core.sums.links import fit
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.core.sums.simulate import Sum, ring, sharded, tree

# With four buckets in flight the next one goes up while the last one comes back, so their mean is the marginal cost.
_BUCKETS_IN_FLIGHT = 4
# `evenly` splits a model into this many gradients: enough for sums to overlap with the backward.
_EVEN_GRADIENTS = 64
# A smaller relative gain is no reason to change a scheme: the simulator itself is no more accurate.
WORTH = 0.03
# A switch port buffers at least this much, as far as is known.
QUEUE_BYTES = 1 << 20

RING_OF_RANKS = "ring of all ranks"
RING = "ring"
TREE = "tree"
SHARDED = "sharded"
HELPERS = "helpers"
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted times of one scheme.

    `sum_s` is the time to sum all gradients at once. `step_s` is the time of a step whose sums overlap with the
    backward. `buckets` is their number, and `sent_bytes` what the busiest host sends in a step.
    """

    scheme: str
    sum_s: float
    step_s: float
    buckets: int
    sent_bytes: int


Scheme = Callable[[Sequence[Sum]], tuple[float, ...]]


class Predictor:
    """Predicts schemes for one model; it simulates each pair of scheme and cluster once.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> cluster = Cluster(4, HostLink(1e8), helpers=4)
    >>> predictor = Predictor(evenly(10_000_000, 0.02), forward_s=0.01, backward_s=0.02)
    >>> predictor.run(scheme_of(cluster), cluster).sent_bytes
    10000000

    `gradients` are those of one rank, in the order in which they become final, with `ready_s` in seconds from the start
    of the backward. `queue_bytes` is the buffer of a switch port: more bytes at once are dropped. Raises
    `ParallelError` if there is nothing to compute or to sum.
    """

    def __init__(
        self, gradients: Sequence[Sum], *, forward_s: float, backward_s: float, queue_bytes: int = QUEUE_BYTES
    ) -> None:
        self.gradient_bytes = sum(gradient.size for gradient in gradients)
        if self.gradient_bytes < 1 or forward_s < 0 or backward_s <= 0:
            raise ParallelError(
                f"{self.gradient_bytes} bytes of gradients, forward_s {forward_s}, backward_s {backward_s}: they must"
                " be at least 1, at least 0 and above 0. Measure a step that trains."
            )
        self.gradients = tuple(gradients)
        self.forward_s, self.backward_s = forward_s, backward_s
        self._queue_bytes = queue_bytes
        self._known: dict[tuple[str, Cluster], Prediction] = {}

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s

    def run(self, scheme: str, cluster: Cluster) -> Prediction:
        """Return the prediction for one scheme between the hosts of `cluster`."""
        key = scheme, cluster
        if key not in self._known:
            self._known[key] = self._run(scheme, cluster)
        return self._known[key]

    def _run(self, scheme: str, cluster: Cluster) -> Prediction:
        simulate = self._simulator(scheme, cluster)
        buckets = self._buckets(simulate)
        # In NCCL's two trees a host sends at most twice its gradients: see `simulate.tree`.
        sent = min(2, cluster.workers - 1) if scheme == TREE else busiest_share(cluster.workers, cluster.helpers)
        return Prediction(
            scheme,
            sum_s=simulate([Sum(self.gradient_bytes)])[0],
            step_s=self.forward_s + max(self.backward_s, *simulate(buckets)),
            buckets=len(buckets),
            sent_bytes=round(sent * self.gradient_bytes),
        )

    def _buckets(self, simulate: Scheme) -> list[Sum]:
        """Return the best buckets for a scheme, planned from what one of several buckets in flight costs."""
        sizes = (self.gradient_bytes, -(-self.gradient_bytes // 16))
        points = [(size, simulate([Sum(size)] * _BUCKETS_IN_FLIGHT)[-1] / _BUCKETS_IN_FLIGHT) for size in sizes]
        # Two points of one size, or sums that take no time, determine no cost line.
        if sizes[0] == sizes[1] or points[0][1] == 0:
            return [Sum(self.gradient_bytes, self.backward_s)]
        cost = fit(points)
        ready_s = [gradient.ready_s for gradient in self.gradients]
        sizes_by_name = [("gradient", gradient.size) for gradient in self.gradients]
        buckets = plan_buckets(sizes_by_name, ready_s=ready_s, cost=cost)
        return [Sum(sum(self.gradients[i].size for i in bucket), ready_s[bucket[-1]]) for bucket in buckets]

    def _simulator(self, scheme: str, cluster: Cluster) -> Scheme:
        if scheme in (RING, RING_OF_RANKS):
            return lambda sums: ring(sums, cluster)
        if scheme == TREE:
            return lambda sums: tree(sums, cluster)
        # With fewer helpers than workers, the workers serve shards as well.
        servers = cluster.helpers if cluster.helpers >= cluster.workers else cluster.helpers + cluster.workers
        window = choose_window(
            cluster.workers,
            servers,
            queue_bytes=self._queue_bytes,
            bandwidth=cluster.link.bytes_per_s,
            latency=cluster.link.latency_s,
        )
        return lambda sums: sharded(sums, cluster, window)


def predict_schemes(predictor: Predictor, cluster: Cluster) -> dict[str, Prediction]:
    """Predict every scheme that `cluster` can run, by name; the schemes that need less hardware come first.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> predictor = Predictor(evenly(10_000_000, backward_s=0.02), forward_s=0.01, backward_s=0.02)
    >>> list(predict_schemes(predictor, Cluster(2, HostLink(1e8), helpers=1)))
    ['sharded', 'ring', 'tree', 'mixed']

    Ring and tree are the schemes of gloo and NCCL.
    """
    workers, ranks = cluster.workers, cluster.ranks_per_host
    alone = replace(cluster, helpers=0)
    runs = [(SHARDED, alone), (RING, alone), (TREE, alone)]
    if ranks > 1 and workers > 1:
        runs.append((RING_OF_RANKS, replace(alone, workers=workers * ranks, ranks_per_host=1)))
    if cluster.helpers and workers > 1:
        runs.append((scheme_of(cluster), cluster))
    return {scheme: predictor.run(scheme, hosts) for scheme, hosts in runs}


def best_scheme(predictions: Mapping[str, Prediction]) -> str:
    """Return the first scheme whose step is within `WORTH` of the fastest: it needs the least hardware."""
    fastest_s = min(prediction.step_s for prediction in predictions.values())
    return next(name for name, prediction in predictions.items() if prediction.step_s <= fastest_s * (1 + WORTH))


def gain(before: Prediction, after: Prediction) -> float:
    """Return the fraction by which a step would be shorter, at least 0."""
    return max(0.0, 1 - after.step_s / before.step_s)


def scheme_of(cluster: Cluster) -> str:
    """Return the scheme by which Herringbone's own sums run on `cluster`."""
    if cluster.helpers == 0:
        return SHARDED
    return HELPERS if cluster.helpers >= cluster.workers else MIXED


def evenly(gradient_bytes: int, backward_s: float) -> list[Sum]:
    """Return equal gradients that become final one after the other, for a model of which only the size is known.

    >>> evenly(6400, backward_s=0.64)[:2]
    [Sum(size=100, ready_s=0.01), Sum(size=100, ready_s=0.02)]
    """
    ends = [gradient_bytes * (index + 1) // _EVEN_GRADIENTS for index in range(_EVEN_GRADIENTS)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return [Sum(size, ready_s) for size, ready_s in zip(sizes, final_times(sizes, backward_s), strict=True)]
