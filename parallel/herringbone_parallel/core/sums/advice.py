"""Finds how a job's gradients are summed and which setting would make its steps shorter, as one list of findings.

    advice = advise(Cluster(workers=4, helpers=4, link=link), gradients, forward_s=0.1, backward_s=0.2)
    advice.best, advice.by_scheme["helpers"].step_s
    print(advice)                                       # a table of all schemes, and the findings
    for line in render(find(predictor, cluster)):       # what a running job logs once
        print(line)

Advice is never an error: helpers that gain nothing work, and merely cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.prediction import (
    HELPERS,
    QUEUE_BYTES,
    RING,
    SHARDED,
    TREE,
    WORTH,
    Prediction,
    Predictor,
    best_scheme,
    gain,
    predict_schemes,
    scheme_of,
)
from herringbone_parallel.core.sums.simulate import Sum


class Kind(Enum):
    """The subject of a finding."""

    ONE_HOST = "nothing crosses a network"
    CURRENT = "how gradients are summed now"
    FASTER = "a setting that makes steps shorter"
    COMPUTE_BOUND = "nothing is faster: communication is hidden behind the backward pass"
    TWO_HOSTS = "nothing is faster: two hosts send all gradients once"
    BANDWIDTH_BOUND = "nothing is faster: hosts already send their gradients once"
    LATENCY_BOUND = "nothing is faster: there is little to sum"
    USELESS_HELPERS = "helpers that are not worth their hosts"
    SURPLUS_HELPERS = "more helpers than workers"


_LIMITS = {
    Kind.COMPUTE_BOUND: "communication is hidden behind the backward pass",
    Kind.TWO_HOSTS: "two hosts send all gradients once, with helpers or without",
    Kind.BANDWIDTH_BOUND: "hosts send their gradients once, and no scheme sends less",
    Kind.LATENCY_BOUND: "there is little to sum, and latency decides",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its kind, its text, the step time it predicts, and the fraction by which a step gets shorter."""

    kind: Kind
    text: str
    step_s: float = 0.0
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The predictions of all schemes, the best of them, and the findings; `str` of it is a text for people."""

    best: str
    by_scheme: Mapping[str, Prediction]
    compute_s: float
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [f"{'scheme':<18}{'sum':>10}{'step':>10}  efficiency  busiest host sends"]
        for prediction in self.by_scheme.values():
            lines.append(
                f"{prediction.scheme:<18}{format_seconds(prediction.sum_s):>10}{format_seconds(prediction.step_s):>10}"
                f"{self.compute_s / prediction.step_s:>11.0%}{prediction.sent_bytes / 1e6:>17.1f} MB"
                f"{'  <- best' if prediction.scheme == self.best else ''}"
            )
        return "\n".join([*lines, *render(self.findings)])


def advise(
    cluster: Cluster,
    gradients: Sequence[Sum],
    *,
    forward_s: float,
    backward_s: float,
    queue_bytes: int = QUEUE_BYTES,
    halves: bool = False,
) -> Advice:
    """Predict every scheme between the hosts of `cluster`, choose the best, and find what would be faster.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> from herringbone_parallel.core.sums.prediction import evenly
    >>> gradients = evenly(10_000_000, backward_s=0.02)
    >>> advise(Cluster(2, HostLink(1e8), helpers=1), gradients, forward_s=0.01, backward_s=0.02).best
    'sharded'

    The arguments are those of `Predictor` and of `find`. Raises `ParallelError` where `Predictor` does.
    """
    predictor = Predictor(gradients, forward_s=forward_s, backward_s=backward_s, queue_bytes=queue_bytes)
    by_scheme = predict_schemes(predictor, cluster)
    findings = tuple(find(predictor, cluster, halves=halves))
    return Advice(best_scheme(by_scheme), by_scheme, predictor.compute_s, findings)


def find(predictor: Predictor, cluster: Cluster, *, halves: bool = False) -> list[Finding]:
    """Return how sums run on `cluster` now, then what would be faster, or why nothing is.

    `halves`: the gradients could travel in 16 bits, and do not.
    """
    workers, helpers = cluster.workers, cluster.helpers
    # Without a network there is nothing to predict.
    if workers == 1:
        useless = f": {helper_count(helpers)} would have nothing to sum" if helpers else ""
        text = f"One host: gradients are summed in its memory, and nothing crosses a network{useless}."
        return [Finding(Kind.ONE_HOST, text)]
    current = predictor.run(scheme_of(cluster), cluster)
    settings = [*_other_settings(predictor, cluster), *_half(predictor, cluster, halves)]
    faster = [
        Finding(
            Kind.FASTER,
            f"{format_seconds(after.step_s)} ({gain(current, after):.0%} less) {setting}",
            after.step_s,
            gain(current, after),
        )
        for setting, after in settings
        if gain(current, after) >= WORTH
    ]
    # The best first: it is the one that a reader should try.
    faster.sort(key=lambda finding: finding.step_s)
    limits = [] if faster else [_limit(predictor, cluster, current)]
    return [_current(predictor, cluster, current), *faster, *limits, *_idle_helpers(predictor, cluster, current)]


def render(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the findings as lines: the first says how sums run now, the second what would be faster.

    >>> from herringbone_parallel.core.sums.links import HostLink
    >>> predictor = Predictor([Sum(25_000_000)], forward_s=0.1, backward_s=0.2)
    >>> for line in render(find(predictor, Cluster(workers=2, link=HostLink(25e6)))):
    ...     print(line)
    25.0 MB of gradients are summed by the 2 hosts: a step takes about 1.10 s, 800.0 ms of it waiting for sums.
    No setting would save 3% or more: two hosts send all gradients once, with helpers or without.
    """
    first, *others = findings
    faster = [finding.text for finding in others if finding.kind is Kind.FASTER]
    sentences = [f"It would take {'; '.join(faster)}."] if faster else []
    sentences += [finding.text for finding in others if finding.kind is not Kind.FASTER]
    return (first.text, " ".join(sentences)) if sentences else (first.text,)


def _current(predictor: Predictor, cluster: Cluster, current: Prediction) -> Finding:
    workers, helpers, size = cluster.workers, cluster.helpers, predictor.gradient_bytes
    amount = f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} KB"
    summers = [helper_count(helpers)] if helpers else []
    # With fewer helpers than workers, the workers sum as well.
    summers += [f"the {workers} hosts"] if helpers < workers else []
    text = (
        f"{amount} of gradients are summed by {' and '.join(summers)}: a step takes about"
        f" {format_seconds(current.step_s)}, {format_seconds(current.step_s - predictor.compute_s)} of it waiting for"
        " sums."
    )
    return Finding(Kind.CURRENT, text, current.step_s)


def _other_settings(predictor: Predictor, cluster: Cluster) -> Iterator[tuple[str, Prediction]]:
    """Yield the settings that a user could choose instead, with the step that each would bring."""
    workers = cluster.workers
    # Two hosts send all gradients once either way: helpers save bytes from three hosts on.
    if cluster.helpers < workers and workers > 2:
        enough = predictor.run(HELPERS, replace(cluster, helpers=workers))
        yield f'with {helper_count(workers)} ("helpers" of dataparallel)', enough
    for scheme in (RING, TREE):
        after = predictor.run(scheme, replace(cluster, helpers=0))
        yield f"with NCCL's or gloo's {scheme} (init_process_group without \"smddp\")", after


def _half(predictor: Predictor, cluster: Cluster, halves: bool) -> Iterator[tuple[str, Prediction]]:
    if halves:
        # Another predictor, because buckets are planned from the sizes.
        half = Predictor(
            [Sum(-(-gradient.size // 2), gradient.ready_s) for gradient in predictor.gradients],
            forward_s=predictor.forward_s,
            backward_s=predictor.backward_s,
        )
        after = half.run(scheme_of(cluster), cluster)
        yield 'with 16 bits on the wire ("wire": "bf16" of dataparallel)', after


def _limit(predictor: Predictor, cluster: Cluster, current: Prediction) -> Finding:
    """Return what keeps every other setting from being faster."""
    kind = _limiting_kind(predictor, cluster, current)
    return Finding(kind, f"No setting would save {WORTH:.0%} or more: {_LIMITS[kind]}.")


def _limiting_kind(predictor: Predictor, cluster: Cluster, current: Prediction) -> Kind:
    if current.step_s <= predictor.compute_s * (1 + WORTH):
        return Kind.COMPUTE_BOUND
    if cluster.workers == 2:
        return Kind.TWO_HOSTS
    # Helpers that send fewer bytes and still gain nothing show that bytes are not what takes the time.
    if cluster.helpers >= cluster.workers and gain(_without_helpers(predictor, cluster), current) >= WORTH:
        return Kind.BANDWIDTH_BOUND
    return Kind.LATENCY_BOUND


def _idle_helpers(predictor: Predictor, cluster: Cluster, current: Prediction) -> Iterator[Finding]:
    """Yield a finding about helpers that make no step shorter."""
    workers, helpers = cluster.workers, cluster.helpers
    if helpers == 0:
        return
    without = _without_helpers(predictor, cluster)
    if gain(without, current) < WORTH:
        text = f"Without {helper_count(helpers)} it would take {format_seconds(without.step_s)}: they are not worth"
        yield Finding(Kind.USELESS_HELPERS, f"{text} their hosts.", without.step_s)
    elif helpers > workers:
        text = f"{workers} of {helper_count(helpers)} take all that {workers} hosts can send;"
        yield Finding(Kind.SURPLUS_HELPERS, f"{text} {helpers - workers} more gain nothing.")


def _without_helpers(predictor: Predictor, cluster: Cluster) -> Prediction:
    return predictor.run(SHARDED, replace(cluster, helpers=0))


def helper_count(number: int) -> str:
    """Return a number of helpers as a text for people."""
    return "1 helper" if number == 1 else f"{number} helpers"


def format_seconds(seconds: float) -> str:
    """Return a time as a text for people."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
