"""Which partition each module belongs to: decided on costs, without a framework.

`decide` takes a measured cost tree and climbs a ladder, each rung starting from the one below:

    contiguous    dynamic programming over the call order; exact for chains               (partition_chain)
    moves         groups change places, contiguous or not                                 (partition_search)
    pairs         two partitions' groups are divided anew between them                    (partition_pairs)
    exhaustive    branch and bound over all splits, for few groups; exact                 (partition_exhaustive)
    proof         branch and price, if given a budget and scipy is there                  (partition_proof)
    milp          HiGHS on the whole of it, with what is left; its bound certifies        (partition_milp)

The cost model is in partition_problem. Without a budget the answer depends on the tree alone, not on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from herringbone_contract.errors import ParallelError
from herringbone_contract.partition_file import PartitionLoad
from herringbone_parallel.core.partition.bounds import least_greatest_cost
from herringbone_parallel.core.partition.chain import split_contiguous
from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.exhaustive import search
from herringbone_parallel.core.partition.milp import certify
from herringbone_parallel.core.partition.pairs import resplit
from herringbone_parallel.core.partition.problem import Loads, Problem, make_problem, revisits, weigh
from herringbone_parallel.core.partition.proof import prove
from herringbone_parallel.core.partition.search import improve

# Complete search is tried up to this many groups.
MAX_EXHAUSTIVE_GROUPS = 24
# The share of the budget for proof by prices; what is left is for HiGHS.
_SHARE_OF_PRICES = 0.75
# A gap below it is rounding.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Decision:
    """A split, what it costs, and how near it is to the best.

    `assigned` has every module with parameters of its own. `bottleneck` and `bound` are shares of the whole model's
    cost; `gap` is (bottleneck - bound) / bound. `communication` is seconds per microbatch, each transfer once.
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
    budget_seconds: float = 0.0,
    revisit_cost: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Split a model so that its costliest partition costs least; among such splits, so that least moves.

        decision = decide(tree, partitions=4, memory_weight=0.2, memory_cap=16 << 30)
        decision.assigned["encoder.layer.0.attention"]     # 0

    `memory_weight` is the share of memory, as opposed to time, in a partition's cost. No partition holds more than
    `memory_cap` bytes. `budget_seconds` of the `clock` let HiGHS look for proof, and a better split, when the gap is
    not closed. A split that comes back to a partition it has left is taken only if it is better by the fraction
    `revisit_cost`: the costs of partitions do not see how a schedule copes with that. The bound and the gap are those
    of all splits.

    Raises `ParallelError` when there are fewer separable modules than partitions, or the cap cannot be kept; it names
    the smallest cap that can.
    """
    problem = make_problem(tree, memory_weight)
    if problem.size < partitions:
        named = [path for members in problem.members for path in members]
        raise _too_few(problem.size, named, partitions)
    if memory_cap is not None:
        _check_indivisible(problem, memory_cap)
    climb = _Climb(problem, partitions, memory_cap, revisit_cost)
    climb.run(budget_seconds, clock)
    numbers: dict[int, int] = {}
    for label in climb.labels:
        numbers.setdefault(label, len(numbers))
    labels = [numbers[label] for label in climb.labels]
    loads = weigh(problem, labels, partitions)
    return Decision(
        assigned={path: label for members, label in zip(problem.members, labels, strict=True) for path in members},
        loads=_load_of_each(loads),
        bottleneck=float(loads.cost.max()),
        communication=float(loads.communication.sum()) / 2,
        bound=climb.bound,
        gap=climb.gap,
        method=climb.method,
        certificate=climb.certificate,
        memory_weight=memory_weight,
        memory_cap=memory_cap,
    )


class _Climb:
    """The ladder under way: the best split so far, and what is proven about it."""

    def __init__(self, problem: Problem, partitions: int, memory_cap: int | None, revisit_cost: float = 0.0) -> None:
        self._problem, self._partitions, self._cap = problem, partitions, memory_cap
        self._revisit_factor = 1.0 + revisit_cost
        self.labels: list[int] = []
        self.method = "contiguous"
        self.certificate = "counting"
        self.bound = 0.0
        self._cost = float("inf")

    @property
    def gap(self) -> float:
        gap = self._cost / self.bound - 1.0 if self.bound else 0.0
        return gap if gap > TOLERANCE else 0.0

    def run(self, budget_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        problem, partitions, cap = self._problem, self._partitions, self._cap
        start = split_contiguous(problem, partitions, cap)
        if start is None:
            assert cap is not None
            start = _lightest(problem, partitions, cap)
            self.method = "moves"
        self._adopt(start, self.method)
        self._adopt(improve(problem, start, partitions, cap), "moves")
        self.bound = least_greatest_cost(problem, partitions, self._cost)
        if self.gap and problem.size <= MAX_EXHAUSTIVE_GROUPS:
            self._exhaust()
        elif self.gap:
            divided = resplit(problem, self.labels, partitions, cap)
            self._adopt(improve(problem, divided, partitions, cap), "pairs")
            self.bound = least_greatest_cost(problem, partitions, self._cost)
        if self.gap and budget_seconds > 0:
            self._certify(budget_seconds, clock)

    def _adopt(self, labels: list[int], method: str) -> None:
        """Keep the split if it is better than the one so far."""
        if not self.labels or self._rank(labels) < self._rank(self.labels):
            self.labels, self.method = labels, method
            self._cost = weigh(self._problem, labels, self._partitions).rank[0]

    def _rank(self, labels: list[int]) -> tuple[float, float]:
        greatest, communication = weigh(self._problem, labels, self._partitions).rank
        return greatest * (self._revisit_factor if revisits(self._problem, labels) else 1.0), communication

    def _exhaust(self) -> None:
        found = search(self._problem, self._partitions, self._cost, self._cap)
        if found is None:
            return
        self.bound, self.certificate = self._cost, "exhaustive search"
        if found.labels is not None:
            best = improve(self._problem, found.labels, self._partitions, self._cap)
            self.bound = weigh(self._problem, best, self._partitions).rank[0]
            self._adopt(best, "exhaustive")

    def _certify(self, budget_seconds: float, clock: Callable[[], float]) -> None:
        start = clock()
        known = self.bound, self._cost
        proven = prove(self._problem, self._partitions, known, _SHARE_OF_PRICES * budget_seconds, clock)
        if proven is not None:
            if proven.labels is not None and self._fits(proven.labels):
                self._adopt(improve(self._problem, proven.labels, self._partitions, self._cap), "branch and price")
            if proven.bound > self.bound:
                self.bound, self.certificate = min(proven.bound, self._cost), "branch and price"
        left = start + budget_seconds - clock()
        if self.gap and left > 0:
            self._solve(left)

    def _solve(self, seconds: float) -> None:
        known = self.bound, self._cost
        certified = certify(self._problem, self._partitions, known, seconds, self._cap)
        if certified is None:
            if self.certificate == "counting":
                self.certificate = "counting (scipy is not installed, or the model is too large for it)"
            return
        if certified.labels is not None and self._fits(certified.labels):
            self._adopt(improve(self._problem, certified.labels, self._partitions, self._cap), "milp")
        if certified.bound > self.bound:
            self.bound, self.certificate = min(certified.bound, self._cost), "MILP (HiGHS)"

    def _fits(self, labels: list[int]) -> bool:
        """Check what the solver promises up to its tolerances only."""
        loads = weigh(self._problem, labels, self._partitions)
        return len(set(labels)) == self._partitions and (self._cap is None or bool(loads.memory.max() <= self._cap))


def _lightest(problem: Problem, partitions: int, memory_cap: int) -> list[int]:
    """Return a split within the cap, found by looking at memory alone; raises `ParallelError` when there is none."""
    memory = problem.memory / problem.memory.sum()
    by_memory = _Climb(replace(problem, cost=memory, flows=(), seconds_share=0.0), partitions, None)
    by_memory.run(0.0)
    greatest = int(weigh(problem, by_memory.labels, partitions).memory.max())
    if greatest <= memory_cap:
        return by_memory.labels
    proven = "the smallest cap that works is" if not by_memory.gap else "the smallest cap found to work is"
    raise ParallelError(
        f"{partitions} partitions cannot keep within a memory cap of {memory_cap} bytes each; {proven} {greatest}"
        " bytes. Raise the cap, or `partitions`."
    )


def _check_indivisible(problem: Problem, memory_cap: int) -> None:
    largest = int(problem.memory.argmax())
    needed = int(problem.memory[largest])
    if needed > memory_cap:
        members = problem.members[largest]
        what = f"module {members[0]!r}" if len(members) == 1 else f"modules {list(members)}, which share parameters,"
        raise ParallelError(
            f"{what} cannot be divided: {needed} bytes, more than the memory cap of {memory_cap} bytes."
            f" No cap below {needed} bytes can work: raise the cap, or split the module."
        )


def _load_of_each(loads: Loads) -> tuple[PartitionLoad, ...]:
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


def _too_few(count: int, paths: Sequence[str], partitions: int) -> ParallelError:
    return ParallelError(
        f"the model has {count} separable modules with parameters, too few for {partitions} partitions:"
        f" {list(paths)}. Lower `partitions`."
    )
