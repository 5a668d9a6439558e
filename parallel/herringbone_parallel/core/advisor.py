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

from herringbone_parallel.core.buckets import final_times, plan_buckets
from herringbone_parallel.core.cluster import Cluster
from herringbone_parallel.core.credits import choose_window
from herringbone_parallel.core.links import fit
from herringbone_parallel.core.shards import busiest_share
from herringbone_parallel.core.simulate_reduce import Sum, ring, sharded, tree
from herringbone_spec.errors import ParallelError

# So many buckets at once show what one more costs, where the next goes up while the last one comes back.
_UNDER_WAY = 4
# So many equal gradients, where nothing is known of them but their bytes.
_EVENLY = 64
# A gain below this is not worth a host, nor another scheme: the simulator itself is no closer.
_WORTH = 0.03

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
                f"{one.scheme:<18}{_time(one.sum_s):>10}{_time(one.step_s):>10}{self.compute_s / one.step_s:>11.0%}"
                f"{one.sent_bytes / 1e6:>17.1f} MB{'  <- best' if one.scheme == self.best else ''}"
            )
        return "\n".join([*lines, *(f"- {reason}" for reason in self.why)])


def advise(
    cluster: Cluster, gradients: Sequence[Sum], *, forward_s: float, backward_s: float, queue_bytes: int = 1 << 20
) -> Advice:
    """Predict every scheme between the hosts of `cluster`, and say which is best.

    >>> from herringbone_parallel.core.links import HostLink
    >>> gradients = evenly(10_000_000, backward_s=0.02)
    >>> advise(Cluster(2, HostLink(1e8), helpers=1), gradients, forward_s=0.01, backward_s=0.02).best
    'sharded'

    Ring and tree are what gloo and NCCL do. `gradients` are those of one rank, in the order in which they are final,
    in seconds from the start of the backward; `queue_bytes` is what a port of the network holds before it drops.
    Raises `ParallelError` where there is nothing to compute or to sum.
    """
    total = sum(one.size for one in gradients)
    if total < 1 or forward_s < 0 or backward_s <= 0:
        raise ParallelError(
            f"{total} bytes of gradients, forward_s {forward_s}, backward_s {backward_s}: they are at least 1, at least"
            " 0 and above 0"
        )
    model = _Model(tuple(gradients), total, forward_s, backward_s, queue_bytes)
    found = {one.scheme: one for one in model.predict(cluster)}
    # The first within a trifle of the fastest: they stand in the order of what they ask for.
    fastest_s = min(one.step_s for one in found.values())
    best = next(one.scheme for one in found.values() if one.step_s <= fastest_s * (1 + _WORTH))
    why = tuple(_reasons(cluster, model, found, best))
    return Advice(best, MappingProxyType(found), forward_s + backward_s, why)


def evenly(gradient_bytes: int, backward_s: float) -> list[Sum]:
    """Return equal gradients that become final one after the other, where no more is known of a model than its bytes.

    >>> evenly(6400, backward_s=0.64)[:2]
    [Sum(size=100, ready_s=0.01), Sum(size=100, ready_s=0.02)]
    """
    ends = [gradient_bytes * (index + 1) // _EVENLY for index in range(_EVENLY)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return [Sum(size, ready_s) for size, ready_s in zip(sizes, final_times(sizes, backward_s), strict=True)]


Scheme = Callable[[Sequence[Sum]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Model:
    gradients: tuple[Sum, ...]
    gradient_bytes: int
    forward_s: float
    backward_s: float
    queue_bytes: int

    def predict(self, cluster: Cluster) -> Iterator[Prediction]:
        """Yield a prediction for each scheme, those that need less first."""
        n, k, ranks = cluster.workers, cluster.helpers, cluster.ranks_per_host
        yield self._run(SHARDED, cluster, 0)
        yield self._run(RING, cluster, 0)
        yield self._run(TREE, cluster, 0)
        if ranks > 1 and n > 1:
            yield self._run(RING_OF_RANKS, replace(cluster, workers=n * ranks, ranks_per_host=1), 0)
        if k and n > 1:
            yield self._run(HELPERS if k >= n else MIXED, cluster, k)

    def with_helpers(self, cluster: Cluster, helpers: int) -> Prediction:
        """Return the prediction for another number of helpers."""
        return self._run(HELPERS if helpers >= cluster.workers else MIXED, cluster, helpers)

    def _run(self, scheme: str, cluster: Cluster, helpers: int) -> Prediction:
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
            f", and {_helpers(k)} would have nothing to sum." if k else "."
        )
        return
    chosen = found[best]
    compute_s = model.forward_s + model.backward_s
    yield (
        f"{best}: a step takes {_time(chosen.step_s)}, {_time(compute_s)} of it to compute; the busiest host sends"
        f" {chosen.sent_bytes / model.gradient_bytes:.2f} x the gradients."
    )
    without = min((one for one in found.values() if one.scheme not in (HELPERS, MIXED)), key=lambda one: one.step_s)
    enough = found[HELPERS] if HELPERS in found else model.with_helpers(cluster, n)
    possible = _gain(without, enough)
    if k > n:
        yield f"{_helpers(k)} for {n} workers: {n} take all that the workers can send, {k - n} more gain nothing."
    if n == 2:
        yield "Two workers send all gradients once with helpers or without: helpers save bytes from three on."
    elif without.step_s <= compute_s * (1 + _WORTH):
        yield (
            f"Compute-bound: without helpers the sums end {_time(without.step_s - compute_s)} after the backward, so"
            f" {n} helpers would make a step {possible:.1%} shorter. They pay on slower links."
        )
    elif possible < _WORTH:
        yield f"Latency-bound: {n} helpers would make a step {possible:.1%} shorter; two hops cost what they cost."
    elif MIXED in found and _gain(without, found[MIXED]) < _WORTH:
        yield (
            f"{_helpers(k)} for {n} workers: too few. A step is {_gain(without, found[MIXED]):.1%} shorter, with {n}"
            f" helpers it is {possible:.1%}."
        )
    elif k < n:
        now = f"{_gain(without, found[MIXED]):.1%} shorter with {_helpers(k)}, " if k else ""
        yield f"Than with no helper, a step is {now}{possible:.1%} shorter with {n} ({_time(enough.step_s)})."
    else:
        yield f"Helpers make a step {possible:.1%} shorter than it is with none."


def _gain(before: Prediction, after: Prediction) -> float:
    return max(0.0, 1 - after.step_s / before.step_s)


def _helpers(number: int) -> str:
    return "1 helper" if number == 1 else f"{number} helpers"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
