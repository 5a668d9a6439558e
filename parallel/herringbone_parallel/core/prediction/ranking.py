"""Ranks layouts by the cost of a sample, and looks at each no closer than its rank needs.

    ranking = Ranking(question, predictor)
    ranking.best(candidates, limit=50)      # the predictions of the best that fit, the best first
    ranking.nearest(10)                     # those that do not fit, the nearest to fit first

A candidate passes these stages. Each gives a cost below which the candidate does not go, and takes more time than the
one before. The candidate with the lowest known cost goes on first, so only those at the top come to the last stage:

    [1] early floor    equal partitions, nothing is decided
    [2] floor          the partition is decided; parameters and states alone may be too large for a device
    [3] time           the simulated pipeline: the cost itself
    [4] peak           the memory of a step; a layout that fits is the next best one

Of layouts whose costs are nearly equal, the plainest comes first: predictions are not so exact, and each way to divide
a model has costs that no prediction knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.prediction.answer import Prediction, StepTime
from herringbone_contract.prediction.question import Hosts, Question
from herringbone_parallel.core.prediction.layout import Layout
from herringbone_parallel.core.prediction.predict import Predictor, held_bytes, refused

# Costs that differ by less are equal for the choice: in benchmarks/plan the plainer of two such layouts was the faster.
_TIE = 1.02


class Candidate(NamedTuple):
    """A layout on hosts, and the dict that asks for it."""

    hosts: Hosts
    layout: Layout
    distribution: dict[str, Any]


class _Known(IntEnum):
    """The knowledge of a candidate's cost, from a floor that nothing decides to the cost itself."""

    EARLY = 0
    FLOOR = 1
    COST = 2


class Ranking:
    """Predicts candidates for a question, the most promising ones first.

        Ranking(question, predictor).best(candidates, limit=50)[0].distribution

    Layouts compare by samples a second; on several hosts that all have prices, by the dollars of a sample. After
    `best`, `impossible` has the predictions of layouts that cannot run, and `num_large` counts those that do not fit.
    Layouts at which `best` did not need to look are in neither.
    """

    def __init__(self, question: Question, predictor: Predictor) -> None:
        self._question, self._predictor = question, predictor
        hosts = question.hosts
        self._by_price = len(hosts) > 1 and all(one.dollars_per_hour is not None for one in hosts)
        self.impossible: list[Prediction] = []
        # A heap by the part of the device's memory that is needed: at least, or exactly with a prediction.
        self._large: list[tuple[float, bool, int, Candidate, Prediction | None]] = []

    @property
    def num_large(self) -> int:
        return len(self._large)

    def best(self, candidates: Sequence[Candidate], limit: int) -> list[Prediction]:
        """Return the predictions of the `limit` best candidates that fit: the plainest of the first, and all in order.

        The answer is that of a prediction of all candidates.
        """
        # Of equal costs the earlier candidate goes on first, so the order is that of costs and numbers.
        waiting = [(self._floor(candidate, early=True), n, _Known.EARLY) for n, candidate in enumerate(candidates)]
        heapq.heapify(waiting)
        steps: dict[int, StepTime] = {}
        good: list[tuple[float, Candidate, Prediction]] = []
        while waiting and len(good) < limit:
            cost, number, known = heapq.heappop(waiting)
            candidate = candidates[number]
            try:
                if known is _Known.COST:
                    prediction = self._fitting(candidate, number, steps.pop(number))
                    good += [] if prediction is None else [(cost, candidate, prediction)]
                elif known is _Known.EARLY:
                    share = self._predictor.least_share(candidate.hosts, self._scaled(candidate))
                    if share > 1.0:
                        self._large.append((share, False, number, candidate, None))
                        continue
                    floor = max(cost, self._floor(candidate, early=False))
                    heapq.heappush(waiting, (floor, number, _Known.FLOOR))
                else:
                    steps[number] = self._predictor.step_time(candidate.hosts, self._scaled(candidate))
                    cost = self._cost_of(candidate, steps[number].seconds.expected)
                    heapq.heappush(waiting, (cost, number, _Known.COST))
            except (DistributionError, ParallelError) as error:
                # Such as a model with too few modules for its partitions.
                hosts, layout, distribution = candidate
                self.impossible.append(refused(hosts, distribution, str(error), layout))
        heapq.heapify(self._large)
        first = _plainest([(cost, candidate) for cost, candidate, _ in good])
        return [prediction for _, _, prediction in (*good[first : first + 1], *good[:first], *good[first + 1 :])]

    def nearest(self, limit: int) -> list[Prediction]:
        """Return the refusals of at most `limit` layouts that do not fit, in the order of their memory."""
        large = list(self._large)
        found: list[Prediction] = []
        while large and len(found) < limit:
            _, is_exact, number, candidate, prediction = heapq.heappop(large)
            if prediction is None:
                prediction = self._predict(candidate, None)
            if is_exact or not prediction.memory:
                found.append(self._with_remedy(candidate, prediction))
            else:
                share = self._share(candidate, prediction)
                heapq.heappush(large, (share, True, number, candidate, prediction))
        return found

    def _fitting(self, candidate: Candidate, number: int, step: StepTime) -> Prediction | None:
        """Return the prediction of a layout that fits; note one that does not."""
        prediction = self._predict(candidate, step)
        if prediction.refusal is None:
            return prediction
        if prediction.memory:
            self._large.append((self._share(candidate, prediction), True, number, candidate, prediction))
        else:
            self.impossible.append(prediction)
        return None

    def _share(self, candidate: Candidate, prediction: Prediction) -> float:
        hosts = candidate.hosts
        return held_bytes(prediction.memory, hosts, candidate.layout) / hosts.device.memory_bytes

    def _predict(self, candidate: Candidate, step: StepTime | None) -> Prediction:
        question = self._question
        hosts, layout, distribution = candidate
        work, scale = question.work, question.scale
        return self._predictor.of_layout(hosts, layout, distribution, work=work, scale=scale, step=step)

    def _with_remedy(self, candidate: Candidate, prediction: Prediction) -> Prediction:
        """Return a refusal for memory with the change of the script that makes the layout fit, if there is one."""
        if candidate.layout.checkpointing or not any(
            module.checkpoint for module in self._predictor.measurement.modules
        ):
            return prediction
        other = self._predict(candidate._replace(layout=replace(candidate.layout, checkpointing=True)), None)
        if other.refusal is not None or prediction.refusal is None:
            return prediction
        peak = max(part.peak for part in other.memory) / (1 << 30)
        remedy = f"With activation checkpointing, which the script can turn on, it fits: {peak:.1f} GiB a rank"
        return msgspec.structs.replace(prediction, refusal=f"{prediction.refusal}. {remedy}")

    def _scaled(self, candidate: Candidate) -> Layout:
        layout = candidate.layout
        return replace(layout, batch_scale=layout.batch_scale * self._question.scale)

    def _floor(self, candidate: Candidate, *, early: bool) -> float:
        """Return a cost that the candidate is certain not to go below."""
        floor = self._predictor.early_floor if early else self._predictor.floor
        return self._cost_of(candidate, floor(candidate.hosts, self._scaled(candidate)))

    def _cost_of(self, candidate: Candidate, seconds: float) -> float:
        hosts, layout = candidate.hosts, candidate.layout
        # In units of the measured batch, which is the same for all candidates.
        cost = seconds / (layout.batch_scale * layout.mesh.batches)
        if self._by_price:
            assert hosts.dollars_per_hour is not None
            cost *= hosts.dollars_per_hour * hosts.count
        return cost


def _plainest(ranked: Sequence[tuple[float, Candidate]]) -> int:
    """Return the position of the plainest layout of those that are nearly as good as the first, on its hosts."""
    near = [
        (_divisions(candidate.layout), position)
        for position, (cost, candidate) in enumerate(ranked)
        if cost <= ranked[0][0] * _TIE and candidate.hosts is ranked[0][1].hosts
    ]
    return min(near, default=(0, 0))[1]


def _divisions(layout: Layout) -> int:
    """Return the number of ways in which a layout divides a step, other than over replicas."""
    mesh = layout.mesh
    degrees = (mesh.shard, mesh.context, mesh.pipeline, mesh.tensor, layout.microbatches)
    return sum(degree > 1 for degree in degrees) + layout.shard_optimizer_state
