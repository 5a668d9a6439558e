"""Finds the layouts that hosts can run with a measured script, and ranks their predictions.

    answer(Question(measurement=path, hosts=(hosts,), distribution={}, search=Search()), measurement).layouts[0]

Candidates come from the library that the script uses. Each candidate becomes a dict, and the dict goes through the
rules that `plan` checks, so the answer holds nothing that a plan would refuse:

    [1] candidates     degrees, microbatches, schedules and aggregation, by library
    [2] rules          dict -> parse -> rules of the contract -> layout
    [3] time, memory   of the most promising ones first, until no layout that is left can be among the best (ranking.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Answer, Prediction
from herringbone_contract.prediction.question import Hosts, Question
from herringbone_parallel.core.prediction.layout import Layout, Library, distribution_of
from herringbone_parallel.core.prediction.measurement import Measurement, Timings
from herringbone_parallel.core.prediction.predict import Predictor, layout_on, refused
from herringbone_parallel.core.prediction.ranking import Candidate, Ranking

# Refused layouts take at most this part of an answer's rows.
_REFUSED_SHARE = 5
_MAX_MICROBATCHES = 32
_PIPELINES = ("interleaved", "simple", "zero_bubble")
# `optimize` speed balances the seconds of partitions rather than their memory; memory is the default.
_SPEED_WEIGHT, _MEMORY_WEIGHT = 0.2, 0.8
# A search compares partitions that are proven to cost at most this fraction more than the best ones, because the proof
# takes a twentieth of the time of the search for the last percent.
_GOOD_ENOUGH = 0.02


def answer(question: Question, measurement: Measurement, timings: Timings | None = None) -> Answer:
    """Return the predictions that a question asks for.

    Without `search`, `layouts` has the question's own dict on each of the hosts, in their order, if there are several.
    """
    # The partition of the job's own dict is the one that the ranks will decide.
    predictor = Predictor(measurement, timings)
    given: dict[str, Any] = {"work": question.work, "scale": question.scale}
    own = [predictor.planned(hosts, question.distribution, **given) for hosts in question.hosts]
    notes = list(measurement.notes)
    if question.search is None:
        return Answer(planned=own[0], layouts=tuple(own) if len(own) > 1 else (), notes=tuple(notes))
    layouts, left_out = search(Predictor(measurement, timings, good_enough=_GOOD_ENOUGH), question)
    return Answer(planned=own[0], layouts=layouts, notes=(*notes, *left_out))


def search(predictor: Predictor, question: Question) -> tuple[tuple[Prediction, ...], tuple[str, ...]]:
    """Return the best predictions, the best first, then layouts that cannot run; and notes on what is left out."""
    assert question.search is not None
    limit = question.search.limit
    runnable: list[Candidate] = []
    rejected: list[Prediction] = []
    for hosts in question.hosts:
        for candidate in candidates(predictor.measurement, hosts, question.distribution):
            if isinstance(candidate, Prediction):
                rejected.append(candidate)
            else:
                runnable.append(candidate)
    ranking = Ranking(question, predictor)
    good = ranking.best(runnable, limit)
    impossible = _distinct([*ranking.impossible, *rejected])
    most = max(limit - len(good), limit // _REFUSED_SHARE)
    large = ranking.nearest(most)
    shown = [*large, *impossible][:most]
    good = good[: limit - len(shown)]
    total = len(runnable) + len(rejected)
    notes = [f"{total} layouts were compared, and the {limit} best are shown"] if total > limit else []
    if ranking.num_large > len(large):
        notes.append(
            f"{ranking.num_large} of the layouts that came first by their time need more memory than there is;"
            f" the {len(large)} that need the least are shown"
        )
    return (*good, *shown), tuple(notes)


def _distinct(rejected: list[Prediction]) -> list[Prediction]:
    """Keep one row for each reason: degrees that fail for one reason need no row each."""
    return list({(prediction.hosts, prediction.refusal): prediction for prediction in reversed(rejected)}.values())[
        ::-1
    ]


def candidates(measurement: Measurement, hosts: Hosts, base: Mapping[str, Any]) -> Iterator[Candidate | Prediction]:
    """Yield the layouts that the hosts can run with this script, and refusals of those that they cannot.

    `base` is the job's own dict: it names the library where a script can use several, and its other keys are kept.
    """
    known: set[Layout] = set()
    for draft in _drafts(measurement, hosts, base):
        distribution = _for_hosts(distribution_of(draft, base, ranks_per_host=hosts.ranks_per_host), hosts)
        try:
            layout = layout_on(hosts, distribution, measurement)
        except (DistributionError, ParallelError) as error:
            yield refused(hosts, distribution, str(error), draft)
            continue
        # Several drafts may be one layout: a rule or a default has made them equal.
        if layout not in known:
            known.add(layout)
            yield Candidate(hosts, layout, distribution)


def _for_hosts(distribution: dict[str, Any], hosts: Hosts) -> dict[str, Any]:
    """Return the dict with the ranks of these hosts, where it says how many ranks a host has."""
    mpi = distribution.get("mpi")
    if isinstance(mpi, dict) and "processes_per_host" in mpi:
        distribution["mpi"] = {**mpi, "processes_per_host": hosts.ranks_per_host}
    return distribution


def _drafts(measurement: Measurement, hosts: Hosts, base: Mapping[str, Any]) -> Iterator[Layout]:
    ranks = hosts.count * hosts.ranks_per_host
    own = parse(base)
    if own.model_parallel_v2 is not None:
        yield from _of_version2(measurement, ranks)
        if measurement.wrapper == "accelerate":
            yield Layout(mesh=Mesh(replicate=ranks), library=Library.DDP)
    elif own.model_parallel is not None or measurement.wrapper == "smp":
        yield from _of_version1(measurement, ranks, base)
    elif measurement.wrapper == "fully_shard":
        yield Layout(mesh=Mesh(shard=ranks), library=Library.FULLY_SHARD)
    elif ranks == 1:
        yield Layout()
    else:
        yield from _of_replicas(measurement, ranks, base)


def _of_replicas(measurement: Measurement, ranks: int, base: Mapping[str, Any]) -> Iterator[Layout]:
    """Yield the layouts of scripts that average gradients with torch's own class, or let accelerate do so."""
    strategy, any_library = parse(base).data_parallel, measurement.wrapper == "accelerate"
    mesh = Mesh(replicate=ranks)
    if strategy is not None or any_library:
        # Adding up more backwards than the job does changes the training; fewer do not.
        every = (
            1
            if strategy is None or not isinstance(strategy.aggregation_frequency, int)
            else strategy.aggregation_frequency
        )
        for aggregation in (count for count in range(1, every + 1) if every % count == 0):
            yield Layout(mesh=mesh, library=Library.DATA_PARALLEL, aggregation=aggregation)
    # A script names the backend `smddp` itself, so it can run only under the library that has it.
    if strategy is None:
        yield Layout(mesh=mesh, library=Library.DDP)
    if any_library:
        yield from _of_version2(measurement, ranks)


def _of_version2(measurement: Measurement, ranks: int) -> Iterator[Layout]:
    attention = any("ttention" in module.type for module in measurement.modules)
    for tensor in _tensor_degrees(measurement, ranks):
        for context in _divisors(ranks // tensor) if attention else [1]:
            for shard in _divisors(ranks // tensor // context):
                mesh = Mesh(replicate=ranks // tensor // context // shard, shard=shard, context=context, tensor=tensor)
                yield Layout(mesh=mesh, library=Library.VERSION2)


def _of_version1(measurement: Measurement, ranks: int, base: Mapping[str, Any]) -> Iterator[Layout]:
    own = parse(base).model_parallel
    planned = None if own is None else own.resolved()
    weights = list({_SPEED_WEIGHT: None} if planned is None else {planned.memory_weight: None, _SPEED_WEIGHT: None})
    shared = Layout(
        library=Library.VERSION1,
        placement="DPT" if planned is None else planned.placement,
        prescaled_batch=planned is not None and planned.prescaled_batch,
        memory_weight=_MEMORY_WEIGHT if planned is None else planned.memory_weight,
    )
    planned_microbatches = 1 if planned is None else planned.microbatches
    for mesh in _meshes1(measurement, ranks):
        for microbatches in _microbatches(measurement, mesh, planned_microbatches):
            default_active = mesh.pipeline + 2
            draft = replace(shared, mesh=mesh, microbatches=microbatches, active=default_active)
            for pipelined in _schedules(draft, weights):
                yield pipelined
                if mesh.data > 1 and mesh.shard == 1:
                    yield replace(pipelined, shard_optimizer_state=True)


def _schedules(draft: Layout, weights: list[float]) -> Iterator[Layout]:
    if draft.mesh.pipeline == 1:
        # One partition holds everything, and its microbatches run one after the other under every schedule.
        yield draft
        return
    # One microbatch runs in the same order under every schedule.
    for weight in weights:
        for pipeline in _PIPELINES if draft.microbatches > 1 else _PIPELINES[:1]:
            yield replace(draft, pipeline=pipeline, memory_weight=weight)


def _meshes1(measurement: Measurement, ranks: int) -> Iterator[Mesh]:
    for tensor in _tensor_degrees(measurement, ranks):
        for pipeline in _divisors(ranks // tensor):
            data = ranks // tensor // pipeline
            for shard in _divisors(data):
                yield Mesh(replicate=data // shard, shard=shard, pipeline=pipeline, tensor=tensor)


def _microbatches(measurement: Measurement, mesh: Mesh, planned: int) -> list[int]:
    """Return the numbers of microbatches that divide the batch: powers of two, and the job's own number."""
    batch = measurement.batch or _MAX_MICROBATCHES
    most = min(batch, _MAX_MICROBATCHES, 8 * mesh.pipeline if mesh.pipeline > 1 else 4)
    counts = {1 << power for power in range(most.bit_length()) if 1 << power <= most}
    if mesh.pipeline > 1:
        # With one microbatch all partitions but one wait.
        counts.discard(1)
    if planned <= batch:
        counts.add(planned)
    return sorted(count for count in counts if batch % count == 0)


def _tensor_degrees(measurement: Measurement, ranks: int) -> list[int]:
    """Return the numbers of ranks that can share layers; 1 where no layer can be split."""
    if not any(module.split for module in measurement.modules):
        return [1]
    return _divisors(ranks)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
