"""Spends a time budget on a decision: searches for a better split, and proves how near the decision is to the best.

Two solvers run in turn, each only while a gap is open:

    [1] branch and price (proof.py)   three quarters of the budget
    [2] HiGHS on the whole program (milp.py)   what is left

Both need scipy, and a job needs neither: jobs decide by `decide`, whose answer depends on the cost tree alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.partition.milp import certify_with_highs
from benchmarks.partition.proof import prove

from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.decide import Decision, decide, decision_of, relative_gap
from herringbone_parallel.core.partition.problem import Problem, make_problem, weigh
from herringbone_parallel.core.partition.search import improve

SHARE_OF_BRANCH_AND_PRICE = 0.75


def certify(
    tree: CostTree,
    partitions: int,
    *,
    memory_weight: float,
    memory_cap: int | None = None,
    budget_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Decide as a job does, then spend `budget_seconds` of the `clock` on a proof where the gap is open.

        decision = certify(tree, 4, memory_weight=0.8, budget_seconds=30.0)
        decision.gap, decision.certificate     # 0.0038, "branch and price"

    Raises `ParallelError` where `decide` does.
    """
    decision = decide(tree, partitions, memory_weight=memory_weight, memory_cap=memory_cap)
    problem = make_problem(tree, memory_weight)
    deadline = clock() + budget_seconds
    if decision.gap:
        known = decision.bound, decision.bottleneck
        proven = prove(problem, partitions, known, SHARE_OF_BRANCH_AND_PRICE * budget_seconds, clock)
        decision = _updated(problem, decision, proven.labels, proven.bound, "branch and price", "branch and price")
    remaining = deadline - clock()
    if decision.gap and remaining > 0:
        certified = certify_with_highs(
            problem, partitions, (decision.bound, decision.bottleneck), remaining, memory_cap
        )
        if certified is not None:
            decision = _updated(problem, decision, certified.labels, certified.bound, "milp", "MILP (HiGHS)")
    return decision


def _updated(
    problem: Problem, decision: Decision, labels: list[int] | None, bound: float, method: str, certificate: str
) -> Decision:
    """Take over the split and the bound of a solver where they are better than the decision's."""
    partitions, cap = len(decision.loads), decision.memory_cap
    if bound > decision.bound:
        decision = replace(decision, bound=bound, certificate=certificate)
    if labels is not None and _is_valid(problem, labels, partitions, cap):
        better = improve(problem, labels, partitions, cap)
        if weigh(problem, better, partitions).rank < (decision.bottleneck, 2 * decision.communication):
            decision = decision_of(
                problem,
                better,
                partitions,
                bound=decision.bound,
                method=method,
                certificate=decision.certificate,
                memory_weight=decision.memory_weight,
                memory_cap=cap,
            )
    # A solver's bound may exceed the best cost by its tolerance.
    bound = min(decision.bound, decision.bottleneck)
    return replace(decision, bound=bound, gap=relative_gap(decision.bottleneck, bound))


def _is_valid(problem: Problem, labels: list[int], partitions: int, memory_cap: int | None) -> bool:
    """Check the constraints exactly: a solver keeps them up to its own tolerances only."""
    loads = weigh(problem, labels, partitions)
    return len(set(labels)) == partitions and (memory_cap is None or bool(loads.memory.max() <= memory_cap))
