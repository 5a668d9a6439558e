"""Ranks the layouts that hosts can run with a measured script by the seconds of a sample.

    answer(Question(measurement=path, hosts=hosts, distribution={}, search=Search()), measurement).layouts[0]

    [1] candidates     degrees, microbatches, schedules and aggregation, by library (candidates.py)
    [2] time           of each of them
    [3] memory         of the fastest ones, until enough of them fit

Of layouts that are nearly equally fast, the plainest comes first: predictions are not so exact, and each way to divide
a model has costs that no prediction knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.prediction.answer import Answer, Prediction, StepTime
from herringbone_contract.prediction.question import Question
from herringbone_parallel.core.prediction.candidates import Candidate, candidates
from herringbone_parallel.core.prediction.layout import Layout
from herringbone_parallel.core.prediction.measurement import Measurement, Timings
from herringbone_parallel.core.prediction.predict import Predictor, held_bytes, refused

# Refused layouts take at most this part of an answer's rows.
_REFUSED_SHARE = 5
# A search compares partitions that are proven to cost at most this fraction more than the best ones, because the proof
# takes a twentieth of the time of the search for the last percent.
_GOOD_ENOUGH = 0.02
# Costs that differ by less are equal for the choice: in benchmarks/plan the plainer of two such layouts was the faster.
_TIE = 1.02


def answer(question: Question, measurement: Measurement, timings: Timings | None = None) -> Answer:
    """Return the predictions that a question asks for: of its own dict, and with `search` of other layouts."""
    # The partition of the job's own dict is the one that the ranks will decide.
    predictor = Predictor(measurement, question.hosts, timings)
    planned = predictor.planned(question.distribution, work=question.work, scale=question.scale)
    if question.search is None:
        return Answer(planned=planned, notes=measurement.notes)
    layouts, left_out = search(Predictor(measurement, question.hosts, timings, good_enough=_GOOD_ENOUGH), question)
    return Answer(planned=planned, layouts=layouts, notes=(*measurement.notes, *left_out))


def search(predictor: Predictor, question: Question) -> tuple[tuple[Prediction, ...], tuple[str, ...]]:
    """Return the best predictions, the best first, then layouts that cannot run; and notes on what is left out."""
    assert question.search is not None
    limit = question.search.limit
    found = list(candidates(predictor.measurement, question.hosts, question.distribution))
    rejected = [one for one in found if isinstance(one, Prediction)]
    ranking = Ranking(question, predictor)
    good = ranking.best([one for one in found if isinstance(one, Candidate)], limit)
    # One row for each reason: degrees that fail for one reason need no row each.
    impossible = list({one.refusal: one for one in reversed([*ranking.impossible, *rejected])}.values())[::-1]
    most = max(limit - len(good), limit // _REFUSED_SHARE)
    large = ranking.nearest(most)
    shown = [*large, *impossible][:most]
    notes = [f"{len(found)} layouts were compared, and the {limit} best are shown"] if len(found) > limit else []
    if ranking.num_large > len(large):
        notes.append(
            f"{ranking.num_large} of the layouts that came first by their time need more memory than there is;"
            f" the {len(large)} that need the least are shown"
        )
    return (*good[: limit - len(shown)], *shown), tuple(notes)


class _Timed(NamedTuple):
    """A candidate and its step; `cost` is seconds in units of the measured batch, which all candidates have."""

    cost: float
    candidate: Candidate
    step: StepTime


class Ranking:
    """Predicts candidates for a question.

        Ranking(question, predictor).best(candidates, limit=50)[0].distribution

    After `best`, `impossible` has the predictions of layouts that cannot run, and `num_large` counts those that do not
    fit. The memory of layouts at which `best` did not need to look is not known, so they are in neither.
    """

    def __init__(self, question: Question, predictor: Predictor) -> None:
        self._question, self._predictor = question, predictor
        self.impossible: list[Prediction] = []
        self._large: list[tuple[Candidate, Prediction]] = []

    @property
    def num_large(self) -> int:
        return len(self._large)

    def best(self, found: Sequence[Candidate], limit: int) -> list[Prediction]:
        """Return the predictions of the `limit` best candidates that fit: the plainest of the first, and all in order.

        The answer is that of a prediction of all candidates.
        """
        timed: list[_Timed] = []
        for candidate in found:
            try:
                timed.append(self._timed(candidate))
            except (DistributionError, ParallelError) as error:
                # Such as a model with too few modules for its partitions.
                layout, distribution = candidate
                self.impossible.append(refused(self._predictor.hosts, distribution, str(error), layout.mesh))
        good: list[tuple[_Timed, Prediction]] = []
        for one in sorted(timed, key=lambda one: one.cost):
            if len(good) == limit:
                break
            prediction = self._predict(one.candidate, one.step)
            if prediction.refusal is None:
                good.append((one, prediction))
            elif not prediction.memory:
                self.impossible.append(prediction)
            else:
                self._large.append((one.candidate, prediction))
        first = _plainest([one for one, _ in good])
        return [prediction for _, prediction in (*good[first : first + 1], *good[:first], *good[first + 1 :])]

    def nearest(self, limit: int) -> list[Prediction]:
        """Return the refusals of at most `limit` layouts that do not fit, in the order of their memory."""

        def held(large: tuple[Candidate, Prediction]) -> int:
            candidate, prediction = large
            return held_bytes(prediction.memory, self._predictor.hosts, candidate.layout)

        return [self._with_remedy(*large) for large in sorted(self._large, key=held)[:limit]]

    def _timed(self, candidate: Candidate) -> _Timed:
        layout = candidate.layout
        scaled = replace(layout, batch_scale=layout.batch_scale * self._question.scale)
        step = self._predictor.step_time(scaled)
        return _Timed(step.seconds.expected / (layout.batch_scale * layout.mesh.batches), candidate, step)

    def _predict(self, candidate: Candidate, step: StepTime | None) -> Prediction:
        given: dict[str, Any] = {"work": self._question.work, "scale": self._question.scale}
        return self._predictor.of_layout(*candidate, **given, step=step)

    def _with_remedy(self, candidate: Candidate, prediction: Prediction) -> Prediction:
        """Return a refusal for memory with the change of the script that makes the layout fit, if there is one."""
        modules = self._predictor.measurement.modules
        if candidate.layout.checkpointing or not any(module.checkpoint for module in modules):
            return prediction
        other = self._predict(candidate._replace(layout=replace(candidate.layout, checkpointing=True)), None)
        if other.refusal is not None:
            return prediction
        peak = max(part.peak for part in other.memory) / (1 << 30)
        remedy = f"With activation checkpointing, which the script can turn on, it fits: {peak:.1f} GiB a rank"
        return msgspec.structs.replace(prediction, refusal=f"{prediction.refusal}. {remedy}")


def _plainest(ranked: Sequence[_Timed]) -> int:
    """Return the position of the plainest layout of those that are nearly as good as the first."""
    near = [
        (_divisions(one.candidate.layout), position)
        for position, one in enumerate(ranked)
        if one.cost <= ranked[0].cost * _TIE
    ]
    return min(near, default=(0, 0))[1]


def _divisions(layout: Layout) -> int:
    """Return the number of ways in which a layout divides a step, other than over replicas."""
    mesh = layout.mesh
    degrees = (mesh.shard, mesh.context, mesh.pipeline, mesh.tensor, layout.microbatches)
    return sum(degree > 1 for degree in degrees) + layout.shard_optimizer_state
