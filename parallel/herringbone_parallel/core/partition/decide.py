"""Decides on which partition each module runs, from measured costs and without a framework.

`decide` takes a cost tree and climbs a ladder. Each rung starts from the best split so far and stops as soon as that
split is proven to be the best:

    [1] contiguous    dynamic programming over the call order; exact for chains        (chain.py)
    [2] moves         single groups move or swap, so runs may become non-contiguous    (search.py)
    [3] exhaustive    branch and bound over all splits, for few groups; exact          (exhaustive.py)
        pairs         two partitions divide their groups again, for many groups        (pairs.py)

problem.py defines the cost model and bounds.py the lower bound. The answer depends on the cost tree alone: all limits
count work rather than seconds, so every machine decides the same. `benchmarks/partition/certify.py` proves more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.partition_file import PartitionLoad
from herringbone_parallel.core.partition.bounds import least_greatest_cost
from herringbone_parallel.core.partition.chain import split_contiguous
from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.exhaustive import search_all_splits
from herringbone_parallel.core.partition.pairs import redivide_pairs
from herringbone_parallel.core.partition.problem import Loads, Problem, make_problem, revisits, weigh
from herringbone_parallel.core.partition.search import improve

# Exhaustive search takes well under a second up to this many groups.
MAX_EXHAUSTIVE_GROUPS = 24
# Costs are shares of the whole model, so a smaller relative gap is rounding of their sums.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Decision:
    """A split, its costs, and its distance from the best split.

    `assigned` has every module with parameters of its own. `bottleneck` and `bound` are shares of the whole model's
    cost; `gap` is (bottleneck - bound) / bound. `communication` is seconds per microbatch, each transfer counted once.
    `method` names the rung that found the split, `certificate` the rung that proved the bound.
    """

    assigned: dict[str, int]
    loads: tuple[PartitionLoad, ...]
    bottleneck: float
    communication: float
    bound: float
    gap: float
    method: str
    certificate: str
    memory_weight: float
    memory_cap: int | None


def decide(
    tree: CostTree,
    partitions: int,
    *,
    memory_weight: float,
    memory_cap: int | None = None,
    revisit_cost: float = 0.0,
    good_enough: float = 0.0,
) -> Decision:
    """Split a model so that its costliest partition costs least; among such splits, minimise communication.

        decision = decide(tree, partitions=4, memory_weight=0.2, memory_cap=16 << 30)
        decision.assigned["encoder.layer.0.attention"]     # 0

    `memory_weight` is the share of memory, as opposed to time, in a partition's cost. No partition holds more than
    `memory_cap` bytes. A split revisits a partition when the call order leaves it and comes back. Such a split must be
    better by the fraction `revisit_cost`, because costs of single partitions do not show that schedules lose time
    there. The bound and the gap are those of all splits. The search ends once the gap is at most `good_enough`; with 0,
    as the runtimes decide, it goes on until its work is done.

    Raises `ParallelError` if the model has fewer separable modules than partitions, or if no split that was found keeps
    the cap. The error then names the smallest cap that works.
    """
    problem = make_problem(tree, memory_weight)
    if problem.size < partitions:
        raise _too_few(problem, partitions)
    if memory_cap is not None:
        # First, because this error names the module that is too large.
        _check_indivisible(problem, memory_cap)
    ladder = _Ladder(problem, partitions, memory_cap, revisit_cost, good_enough)
    ladder.climb()
    return decision_of(
        problem,
        ladder.labels,
        partitions,
        bound=ladder.bound,
        method=ladder.method,
        certificate=ladder.certificate,
        memory_weight=memory_weight,
        memory_cap=memory_cap,
    )


def decision_of(
    problem: Problem,
    labels: Sequence[int],
    partitions: int,
    *,
    bound: float,
    method: str,
    certificate: str,
    memory_weight: float,
    memory_cap: int | None,
) -> Decision:
    """Describe a split, given by the partition of each group, with its loads and its gap to `bound`."""
    # Number the partitions in call order, so that partition 0 holds the model's first group.
    numbers: dict[int, int] = {}
    labels = [numbers.setdefault(label, len(numbers)) for label in labels]
    loads = weigh(problem, labels, partitions)
    bottleneck = float(loads.cost.max())
    return Decision(
        assigned={path: label for members, label in zip(problem.members, labels, strict=True) for path in members},
        loads=_partition_loads(loads),
        bottleneck=bottleneck,
        # `weigh` charges each transfer to both ends.
        communication=float(loads.communication.sum()) / 2,
        bound=bound,
        gap=relative_gap(bottleneck, bound),
        method=method,
        certificate=certificate,
        memory_weight=memory_weight,
        memory_cap=memory_cap,
    )


def relative_gap(cost: float, bound: float) -> float:
    """Return (cost - bound) / bound; 0 where the difference is rounding or no bound is known."""
    gap = cost / bound - 1.0 if bound else 0.0
    return gap if gap > TOLERANCE else 0.0


class _Ladder:
    """The best split so far and the bound proven so far.

    ladder = _Ladder(problem, partitions=4, memory_cap=None)
    ladder.climb()
    ladder.labels     # the partition of each group
    """

    def __init__(
        self,
        problem: Problem,
        partitions: int,
        memory_cap: int | None,
        revisit_cost: float = 0.0,
        good_enough: float = 0.0,
    ) -> None:
        self._good_enough = good_enough
        self._problem, self._partitions, self._cap = problem, partitions, memory_cap
        self._revisit_factor = 1.0 + revisit_cost
        self.labels: list[int] = []
        self.method = "contiguous"
        self.certificate = "counting"
        self.bound = 0.0
        self._cost = float("inf")

    @property
    def gap(self) -> float:
        return relative_gap(self._cost, self.bound)

    def climb(self) -> None:
        problem, partitions, cap = self._problem, self._partitions, self._cap
        start = split_contiguous(problem, partitions, cap)
        if start is None:
            # No contiguous split keeps the cap, but one out of order may.
            assert cap is not None
            start = _split_within_cap(problem, partitions, cap)
            self.method = "moves"
        self._adopt(start, self.method)
        self._adopt(improve(problem, start, partitions, cap), "moves")
        self.bound = least_greatest_cost(problem, partitions, self._cost)
        # A split that meets the bound is the best, so further rungs would waste time.
        if self.gap <= self._good_enough:
            return
        if problem.size <= MAX_EXHAUSTIVE_GROUPS:
            self._search_exhaustively()
        else:
            # Of splits that meet the bound one has the least communication, so without slack nothing ends early.
            enough = self.bound * (1 + self._good_enough) if self._good_enough else 0.0
            redivided = redivide_pairs(problem, self.labels, partitions, cap, enough=enough)
            self._adopt(improve(problem, redivided, partitions, cap), "pairs")
            # The bound rises when the best known cost falls: see bounds.py.
            self.bound = least_greatest_cost(problem, partitions, self._cost)

    def _adopt(self, labels: list[int], method: str) -> None:
        """Keep the split if it is better than the best so far."""
        if not self.labels or self._rank(labels) < self._rank(self.labels):
            self.labels, self.method = labels, method
            self._cost = weigh(self._problem, labels, self._partitions).rank[0]

    def _rank(self, labels: list[int]) -> tuple[float, float]:
        greatest, communication = weigh(self._problem, labels, self._partitions).rank
        # A split that revisits compares as if it cost more, but `_cost`, and so the gap, uses its true cost.
        return greatest * (self._revisit_factor if revisits(self._problem, labels) else 1.0), communication

    def _search_exhaustively(self) -> None:
        result = search_all_splits(self._problem, self._partitions, self._cost, self._cap)
        if result is None:
            # Too many placements: the split stays without a proof.
            return
        # The search was complete: either the known split is the best, or the new one is.
        self.bound, self.certificate = self._cost, "exhaustive search"
        if result.labels is not None:
            # `improve` cannot lower the greatest cost any more, but it can lower communication at that cost.
            best = improve(self._problem, result.labels, self._partitions, self._cap)
            # The bound is that of all splits, even if `revisit_cost` keeps the best one from being adopted.
            self.bound = weigh(self._problem, best, self._partitions).rank[0]
            self._adopt(best, "exhaustive")


def _split_within_cap(problem: Problem, partitions: int, memory_cap: int) -> list[int]:
    """Return a split within the cap, searched by memory alone; raise `ParallelError` if the search finds none."""
    # With memory as the only cost, the least greatest cost is the smallest cap that can be kept.
    memory = problem.memory / problem.memory.sum()
    by_memory = _Ladder(replace(problem, cost=memory, flows=(), seconds_share=0.0), partitions, None)
    by_memory.climb()
    greatest = int(weigh(problem, by_memory.labels, partitions).memory.max())
    if greatest <= memory_cap:
        return by_memory.labels
    smallest = "the smallest cap that works is" if not by_memory.gap else "the smallest cap found to work is"
    raise ParallelError(
        f"{partitions} partitions cannot keep within a memory cap of {memory_cap} bytes each; {smallest} {greatest}"
        " bytes. Raise the cap, or `partitions`."
    )


def _check_indivisible(problem: Problem, memory_cap: int) -> None:
    """Raise `ParallelError` if a single group, which cannot be divided, is larger than the cap."""
    largest = int(problem.memory.argmax())
    needed = int(problem.memory[largest])
    if needed > memory_cap:
        members = problem.members[largest]
        group = f"module {members[0]!r}" if len(members) == 1 else f"modules {list(members)}, which share parameters,"
        raise ParallelError(
            f"{group} cannot be divided: {needed} bytes, more than the memory cap of {memory_cap} bytes."
            f" No cap below {needed} bytes can work: raise the cap, or split the module."
        )


def _partition_loads(loads: Loads) -> tuple[PartitionLoad, ...]:
    columns = zip(loads.cost, loads.memory, loads.seconds, loads.communication, strict=True)
    return tuple(
        PartitionLoad(
            cost=float(cost),
            memory_bytes=int(memory),
            seconds=float(seconds),
            communication_seconds=float(communication),
        )
        for cost, memory, seconds, communication in columns
    )


def _too_few(problem: Problem, partitions: int) -> ParallelError:
    paths = [path for members in problem.members for path in members]
    return ParallelError(
        f"the model has {problem.size} separable modules with parameters, too few for {partitions} partitions:"
        f" {paths}. Lower `partitions`."
    )
