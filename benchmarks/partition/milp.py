"""Solves the partition problem as a mixed-integer program with scipy's HiGHS: a proven bound, sometimes a better split.

minimise t                                        g a group, f a flow from group s, k a partition
x[g,k] in {0,1}   g is on k                       sum_k x[g,k] = 1,   sum_g x[g,k] >= 1
y[f,k] >= x[user,k] - x[s,k]                      f is received by k
z[f,k] <= (P-1) x[s,k],  sum_k z = sum_k y        f is sent that many times, by its source's partition
sum_g cost x[g,k] + share * sum_f seconds (y[f,k] + z[f,k]) <= t
sum_g memory x[g,k] <= cap
sum_f seconds sum_k y[f,k] >= least communication  (core/partition/bounds.py)
x[g,k] = 0 for k > g                              partitions are numbered by their first group
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from herringbone_parallel.core.partition.bounds import least_communication
from herringbone_parallel.core.partition.problem import Floats, Problem

# For larger programs the solver does not finish its first relaxation in a sensible budget.
MAX_BINARIES = 6_000


@dataclass(frozen=True, slots=True)
class Certified:
    """A proven lower bound on the greatest cost, and a split if the solver found one."""

    bound: float
    labels: list[int] | None


def certify_with_highs(
    problem: Problem, partitions: int, known: tuple[float, float], seconds: float, memory_cap: float | None = None
) -> Certified | None:
    """Let HiGHS work for at most `seconds` on a problem with a `known` (bound, greatest cost).

    Returns None when the program is too large.
    """
    if problem.size * partitions > MAX_BINARIES:
        return None
    program = _Program(problem, partitions, known, memory_cap)
    matrix = sparse.csr_matrix(
        (program.entries, (program.rows, program.columns)), shape=(len(program.lower), program.width)
    )
    answer = optimize.milp(
        program.objective,
        constraints=optimize.LinearConstraint(matrix, program.lower, program.upper),
        integrality=program.integrality,
        bounds=optimize.Bounds(program.least, program.most),
        options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )
    bound = known[0] if answer.mip_dual_bound is None else max(known[0], answer.mip_dual_bound * known[1])
    labels = None
    if answer.x is not None:
        assignment = answer.x[: problem.size * partitions].reshape(problem.size, partitions)
        labels = [int(label) for label in assignment.argmax(axis=1)]
    return Certified(min(bound, known[1]), labels)


class _Program:
    """The rows and columns of the program. Costs are scaled so that the known split's greatest cost is 1."""

    def __init__(self, problem: Problem, partitions: int, known: tuple[float, float], memory_cap: float | None) -> None:
        self._problem, self._partitions = problem, partitions
        # Communication without cost needs no columns.
        self._flows = problem.flows if problem.seconds_share else ()
        binaries, moves = problem.size * partitions, len(self._flows) * partitions
        self._received, self._sent, self._top = binaries, binaries + moves, binaries + 2 * moves
        self.width = self._top + 1
        self.objective = np.zeros(self.width)
        self.objective[self._top] = 1.0
        self.integrality = np.zeros(self.width)
        self.integrality[:binaries] = 1
        self.least, self.most = np.zeros(self.width), np.ones(self.width)
        self.most[self._sent : self._top] = partitions - 1
        self.least[self._top] = known[0] / known[1]
        # Partitions are interchangeable. Group g on partition g at most removes most of the equal splits.
        for group in range(min(problem.size, partitions)):
            self.most[group * partitions + group + 1 : (group + 1) * partitions] = 0.0
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.entries: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._place_groups(memory_cap)
        self._move_values()
        self._weigh(known[1])

    def _row(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        row = len(self.lower)
        self.lower.append(lower)
        self.upper.append(upper)
        for column, entry in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.entries.append(entry)

    def _on(self, group: int, partition: int) -> int:
        return group * self._partitions + partition

    def _place_groups(self, memory_cap: float | None) -> None:
        groups = range(self._problem.size)
        for group in groups:
            self._row([(self._on(group, k), 1.0) for k in range(self._partitions)], 1.0, 1.0)
        for k in range(self._partitions):
            self._row([(self._on(group, k), 1.0) for group in groups], 1.0, np.inf)
            if memory_cap:
                shares: Floats = self._problem.memory / memory_cap
                self._row([(self._on(group, k), float(shares[group])) for group in groups], 0.0, 1.0)

    def _move_values(self) -> None:
        count = self._partitions
        for index, flow in enumerate(self._flows):
            received, sent = self._received + index * count, self._sent + index * count
            for k in range(count):
                source = self._on(flow.source, k)
                for user in flow.users:
                    self._row([(received + k, 1.0), (self._on(user, k), -1.0), (source, 1.0)], 0.0, np.inf)
                self._row([(sent + k, 1.0), (source, 1.0 - count)], -np.inf, 0.0)
            self._row(
                [(column + k, sign) for column, sign in ((sent, 1.0), (received, -1.0)) for k in range(count)], 0, 0
            )

    def _weigh(self, greatest: float) -> None:
        problem, count = self._problem, self._partitions
        weights = [problem.seconds_share * flow.seconds / greatest for flow in self._flows]
        for k in range(count):
            terms = [(self._on(group, k), float(problem.cost[group]) / greatest) for group in range(problem.size)]
            for first in (self._received, self._sent):
                terms += [(first + index * count + k, weight) for index, weight in enumerate(weights)]
            self._row([*terms, (self._top, -1.0)], -np.inf, 0.0)
        if weights:
            unavoidable = least_communication(problem, count, greatest) * problem.seconds_share / greatest
            moved = [(self._received + i * count + k, weight) for i, weight in enumerate(weights) for k in range(count)]
            # Slightly less, so that rounding never makes the program infeasible.
            self._row(moved, unavoidable * (1 - 1e-6), np.inf)
