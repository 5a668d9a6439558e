"""What a job says once about its sums: how they are made, and which setting would make a step shorter.

    for line in spoken_advice(cluster, gradients, forward_s=0.1, backward_s=0.2, halves=True):
        print(line)

`advisor` compares every scheme, for whoever asks; this is what follows from it for the job that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from herringbone_parallel.core.sums.advisor import (
    HELPERS,
    RING,
    SHARDED,
    TREE,
    WORTH,
    Prediction,
    gain,
    helper_count,
    in_words,
    predict,
    scheme_of,
)
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.simulate import Sum


def spoken_advice(
    cluster: Cluster, gradients: Sequence[Sum], *, forward_s: float, backward_s: float, halves: bool
) -> tuple[str, ...]:
    """Return two lines: what is used, and what would be faster, by how much, and by which setting.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> cluster = Cluster(workers=2, link=HostLink(25e6))
    >>> for line in spoken_advice(cluster, [Sum(25_000_000)], forward_s=0.1, backward_s=0.2, halves=False):
    ...     print(line)
    25.0 MB of gradients are summed by the 2 hosts: a step takes about 1.10 s, 800.0 ms of it waiting for sums.
    Nothing makes it 3% shorter: two hosts send all gradients once, with helpers or without.

    `gradients` are as `advisor.advise` takes them; `halves` says whether they could travel in 16 bits, and do not.
    """
    if cluster.workers == 1:
        nothing = f": {helper_count(cluster.helpers)} would have nothing to sum" if cluster.helpers else ""
        return (f"One host: gradients are summed in its memory, and nothing crosses a network{nothing}.",)
    case = _Case(cluster, tuple(gradients), forward_s, backward_s)
    now = case.now()
    options = [*_options(case), *_half(case, halves)]
    better = sorted(
        (option for option in options if gain(now, option.then) >= WORTH), key=lambda option: option.then.step_s
    )
    size = sum(one.size for one in gradients)
    amount = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} KB"
    used = (
        f"{amount} of gradients are summed by {_summers(cluster)}: a step takes about {in_words(now.step_s)},"
        f" {in_words(now.step_s - case.compute_s)} of it waiting for sums."
    )
    wasted = "".join(f" {sentence}" for sentence in _wasted(case, now))
    if not better:
        return used, f"Nothing makes it {WORTH:.0%} shorter: {_why_not(case, now)}.{wasted}"
    faster = "; ".join(f"{in_words(one.then.step_s)} ({gain(now, one.then):.0%} less) {one.how}" for one in better)
    return used, f"It would take {faster}.{wasted}"


@dataclass(frozen=True, slots=True)
class _Option:
    how: str
    then: Prediction


@dataclass(frozen=True, slots=True)
class _Case:
    cluster: Cluster
    gradients: tuple[Sum, ...]
    forward_s: float
    backward_s: float

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s

    def now(self) -> Prediction:
        return self.run(scheme_of(self.cluster), self.cluster.helpers)

    def run(self, scheme: str, helpers: int) -> Prediction:
        cluster = replace(self.cluster, helpers=helpers)
        return predict(scheme, cluster, self.gradients, forward_s=self.forward_s, backward_s=self.backward_s)


def _options(case: _Case) -> Iterator[_Option]:
    n, k = case.cluster.workers, case.cluster.helpers
    if k < n and n > 2:
        yield _Option(f'with {helper_count(n)} ("helpers" of dataparallel)', case.run(HELPERS, n))
    for scheme in (RING, TREE):
        yield _Option(f"with NCCL's or gloo's {scheme} (init_process_group without \"smddp\")", case.run(scheme, 0))


def _half(case: _Case, halves: bool) -> Iterator[_Option]:
    if halves:
        half = replace(case, gradients=tuple(Sum(-(-one.size // 2), one.ready_s) for one in case.gradients))
        yield _Option('with 16 bits on the wire ("wire": "bf16" of dataparallel)', half.now())


def _summers(cluster: Cluster) -> str:
    n, k = cluster.workers, cluster.helpers
    if k == 0:
        return f"the {n} hosts"
    return helper_count(k) if k >= n else f"{helper_count(k)} and the {n} hosts"


def _wasted(case: _Case, now: Prediction) -> Iterator[str]:
    """Yield what is said of helpers that do nothing for the step."""
    n, k = case.cluster.workers, case.cluster.helpers
    if k == 0:
        return
    without = case.run(SHARDED, 0)
    if gain(without, now) < WORTH:
        yield f"Without {helper_count(k)} it would take {in_words(without.step_s)}: they are not worth their hosts."
    elif k > n:
        yield f"{n} of {helper_count(k)} take all that {n} hosts can send; {k - n} more gain nothing."


def _why_not(case: _Case, now: Prediction) -> str:
    n, k = case.cluster.workers, case.cluster.helpers
    if now.step_s <= case.compute_s * (1 + WORTH):
        return "the sums hide behind the backward"
    if n == 2:
        return "two hosts send all gradients once, with helpers or without"
    if k >= n:
        return "hosts send their gradients once, and no scheme sends less"
    return "there is little to sum, and two hops cost what they cost"
