"""Which way of summing gradients is fastest between these hosts, for this model, and whether helpers would help.

    gradients = evenly(100_000_000, backward_s=0.2)     # or what each gradient has, and when it is final, if known
    advice = advise(Cluster(workers=4, helpers=4, link=link), gradients, forward_s=0.1, backward_s=0.2)
    advice.best, advice.by_scheme["helpers"].step_s
    print(advice)

Every scheme is simulated as it would run: buckets planned for its cost, leaving while the backward goes on. What counts
is the step's time. Advice is never an error: more helpers than are useful work, and merely cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.buckets import final_times, plan_buckets
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.credits import choose_window
from herringbone_parallel.core.sums.links import fit
from herringbone_parallel.core.sums.shards import busiest_share
from herringbone_parallel.core.sums.simulate import Sum, ring, sharded, tree

# So many buckets at once show what one more costs, where the next goes up while the last one comes back.
_UNDER_WAY = 4
# So many equal gradients, where nothing is known of them but their bytes.
_EVENLY = 64
# A gain below this is not worth a host, nor another scheme: the simulator itself is no closer.
WORTH = 0.03
# What a switch's port holds at least, as far as we know.
QUEUE_BYTES = 1 << 20

RING_OF_RANKS = "ring of all ranks"
RING = "ring"
TREE = "tree"
SHARDED = "sharded"
HELPERS = "helpers"
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a scheme comes to.

    `sum_s` is the time of all gradients at once, `step_s` a step's with sums under way during the backward, `buckets`
    their number, and `sent_bytes` what the busiest host sends in a step.
    """

    scheme: str
    sum_s: float
    step_s: float
    buckets: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The schemes, the fastest by more than a trifle, and why; `str` of it is for people."""

    best: str
    by_scheme: Mapping[str, Prediction]
    compute_s: float
    why: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{'scheme':<18}{'sum':>10}{'step':>10}  efficiency  busiest host sends"]
        for one in self.by_scheme.values():
            lines.append(
                f"{one.scheme:<18}{in_words(one.sum_s):>10}{in_words(one.step_s):>10}"
                f"{self.compute_s / one.step_s:>11.0%}{one.sent_bytes / 1e6:>17.1f} MB"
                f"{'  <- best' if one.scheme == self.best else ''}"
            )
        return "\n".join([*lines, *(f"- {reason}" for reason in self.why)])


def advise(
    cluster: Cluster, gradients: Sequence[Sum], *, forward_s: float, backward_s: float, queue_bytes: int = QUEUE_BYTES
) -> Advice:
    """Predict every scheme between the hosts of `cluster`, and say which is best.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> gradients = evenly(10_000_000, backward_s=0.02)
    >>> advise(Cluster(2, HostLink(1e8), helpers=1), gradients, forward_s=0.01, backward_s=0.02).best
    'sharded'

    Ring and tree are what gloo and NCCL do. `gradients` are those of one rank, in the order in which they are final,
    in seconds from the start of the backward; `queue_bytes` is what a port of the network holds before it drops.
    Raises `ParallelError` where there is nothing to compute or to sum.
    """
    model = _model(gradients, forward_s, backward_s, queue_bytes)
    found = {one.scheme: one for one in model.predictions(cluster)}
    # The first within a trifle of the fastest: they stand in the order of what they ask for.
    fastest_s = min(one.step_s for one in found.values())
    best = next(one.scheme for one in found.values() if one.step_s <= fastest_s * (1 + WORTH))
    why = tuple(_reasons(cluster, model, found, best))
    return Advice(best, MappingProxyType(found), forward_s + backward_s, why)


def predict(
    scheme: str, cluster: Cluster, gradients: Sequence[Sum], *, forward_s: float, backward_s: float
) -> Prediction:
    """Predict one scheme between the hosts of `cluster`, for gradients as `advise` takes them.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> cluster = Cluster(4, HostLink(1e8), helpers=4)
    >>> predict(scheme_of(cluster), cluster, evenly(10_000_000, 0.02), forward_s=0.01, backward_s=0.02).sent_bytes
    10000000
    """
    return _model(gradients, forward_s, backward_s, QUEUE_BYTES).run(scheme, cluster, cluster.helpers)


def scheme_of(cluster: Cluster) -> str:
    """Return the scheme by which our own sums are made there."""
    if cluster.helpers == 0:
        return SHARDED
    return HELPERS if cluster.helpers >= cluster.workers else MIXED


def evenly(gradient_bytes: int, backward_s: float) -> list[Sum]:
    """Return equal gradients that become final one after the other, where no more is known of a model than its bytes.

    >>> evenly(6400, backward_s=0.64)[:2]
    [Sum(size=100, ready_s=0.01), Sum(size=100, ready_s=0.02)]
    """
    ends = [gradient_bytes * (index + 1) // _EVENLY for index in range(_EVENLY)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return [Sum(size, ready_s) for size, ready_s in zip(sizes, final_times(sizes, backward_s), strict=True)]


Scheme = Callable[[Sequence[Sum]], tuple[float, ...]]


def _model(gradients: Sequence[Sum], forward_s: float, backward_s: float, queue_bytes: int) -> _Model:
    total = sum(one.size for one in gradients)
    if total < 1 or forward_s < 0 or backward_s <= 0:
        raise ParallelError(
            f"{total} bytes of gradients, forward_s {forward_s}, backward_s {backward_s}: they are at least 1, at least"
            " 0 and above 0"
        )
    return _Model(tuple(gradients), total, forward_s, backward_s, queue_bytes)


@dataclass(frozen=True, slots=True)
class _Model:
    gradients: tuple[Sum, ...]
    gradient_bytes: int
    forward_s: float
    backward_s: float
    queue_bytes: int

    def predictions(self, cluster: Cluster) -> Iterator[Prediction]:
        """Yield a prediction for each scheme, those that need less first."""
        n, k, ranks = cluster.workers, cluster.helpers, cluster.ranks_per_host
        yield self.run(SHARDED, cluster, 0)
        yield self.run(RING, cluster, 0)
        yield self.run(TREE, cluster, 0)
        if ranks > 1 and n > 1:
            yield self.run(RING_OF_RANKS, replace(cluster, workers=n * ranks, ranks_per_host=1), 0)
        if k and n > 1:
            yield self.run(scheme_of(cluster), cluster, k)

    def with_helpers(self, cluster: Cluster, helpers: int) -> Prediction:
        """Return the prediction for another number of helpers."""
        return self.run(scheme_of(replace(cluster, helpers=helpers)), cluster, helpers)

    def run(self, scheme: str, cluster: Cluster, helpers: int) -> Prediction:
        """Return the prediction for one scheme with so many helpers."""
        cluster = replace(cluster, helpers=helpers)
        run = self._scheme(scheme, cluster)
        sum_s = run([Sum(self.gradient_bytes)])[0]
        buckets = self._buckets(run)
        share = busiest_share(cluster.workers, helpers)
        if scheme == TREE:
            share = min(2, cluster.workers - 1)
        return Prediction(
            scheme,
            sum_s=sum_s,
            step_s=self.forward_s + max(self.backward_s, *run(buckets)),
            buckets=len(buckets),
            sent_bytes=round(share * self.gradient_bytes),
        )

    def _buckets(self, run: Scheme) -> list[Sum]:
        """Return the buckets that are best for a scheme, by what each of several under way costs."""
        sizes = (self.gradient_bytes, -(-self.gradient_bytes // 16))
        points = [(size, run([Sum(size)] * _UNDER_WAY)[-1] / _UNDER_WAY) for size in sizes]
        if sizes[0] == sizes[1] or points[0][1] == 0:
            return [Sum(self.gradient_bytes, self.backward_s)]
        cost = fit(points)
        ready_s = [one.ready_s for one in self.gradients]
        buckets = plan_buckets([("gradient", one.size) for one in self.gradients], ready_s=ready_s, cost=cost)
        return [Sum(sum(self.gradients[i].size for i in bucket), ready_s[bucket[-1]]) for bucket in buckets]

    def _scheme(self, scheme: str, cluster: Cluster) -> Scheme:
        if scheme in (RING, RING_OF_RANKS):
            return lambda sums: ring(sums, cluster)
        if scheme == TREE:
            return lambda sums: tree(sums, cluster)
        servers = cluster.helpers if cluster.helpers >= cluster.workers else cluster.helpers + cluster.workers
        window = choose_window(
            cluster.workers,
            servers,
            queue_bytes=self.queue_bytes,
            bandwidth=cluster.link.bytes_per_s,
            latency=cluster.link.latency_s,
        )
        return lambda sums: sharded(sums, cluster, window)


def _reasons(cluster: Cluster, model: _Model, found: Mapping[str, Prediction], best: str) -> Iterator[str]:
    n, k = cluster.workers, cluster.helpers
    if n == 1:
        yield "One host: nothing crosses the network" + (
            f", and {helper_count(k)} would have nothing to sum." if k else "."
        )
        return
    chosen = found[best]
    compute_s = model.forward_s + model.backward_s
    yield (
        f"{best}: a step takes {in_words(chosen.step_s)}, {in_words(compute_s)} of it to compute; the busiest host"
        f" sends {chosen.sent_bytes / model.gradient_bytes:.2f} x the gradients."
    )
    without = min((one for one in found.values() if one.scheme not in (HELPERS, MIXED)), key=lambda one: one.step_s)
    enough = found[HELPERS] if HELPERS in found else model.with_helpers(cluster, n)
    possible = gain(without, enough)
    if k > n:
        yield f"{helper_count(k)} for {n} workers: {n} take all that the workers can send, {k - n} more gain nothing."
    if n == 2:
        yield "Two workers send all gradients once with helpers or without: helpers save bytes from three on."
    elif without.step_s <= compute_s * (1 + WORTH):
        yield (
            f"Compute-bound: without helpers the sums end {in_words(without.step_s - compute_s)} after the backward,"
            f" so {n} helpers would make a step {possible:.1%} shorter. They pay on slower links."
        )
    elif possible < WORTH:
        yield f"Latency-bound: {n} helpers would make a step {possible:.1%} shorter; two hops cost what they cost."
    elif MIXED in found and gain(without, found[MIXED]) < WORTH:
        yield (
            f"{helper_count(k)} for {n} workers: too few. A step is {gain(without, found[MIXED]):.1%} shorter, with {n}"
            f" helpers it is {possible:.1%}."
        )
    elif k < n:
        now = f"{gain(without, found[MIXED]):.1%} shorter with {helper_count(k)}, " if k else ""
        yield f"Than with no helper, a step is {now}{possible:.1%} shorter with {n} ({in_words(enough.step_s)})."
    else:
        yield f"Helpers make a step {possible:.1%} shorter than it is with none."


def gain(before: Prediction, after: Prediction) -> float:
    """Return by what part of it a step would be shorter."""
    return max(0.0, 1 - after.step_s / before.step_s)


def helper_count(number: int) -> str:
    """Return how many helpers, for people."""
    return "1 helper" if number == 1 else f"{number} helpers"


def in_words(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
