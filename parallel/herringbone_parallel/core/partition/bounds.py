"""Computes a lower bound on the greatest cost of any split, by counting.

The greatest cost is at least the average. All partitions together cost the whole model plus twice the communication,
because both ends pay, and some communication cannot be avoided:

Keep only the values that take longer than a threshold t. They join the groups into components. P non-empty partitions
that cost at most B each must cut these values

    [1] at least P - components(t) times, since each transfer adds at most one part to components(t), and
    [2] at least ceil(C / B) - 1 times for each component of cost C, since one partition carries at most B.

The integral over t of the greater of the two is a number of seconds of communication that every split pays. B is the
greatest cost of the best split known: a split that costs more is of no interest. So a better split raises the bound.
"""

from __future__ import annotations

import math

from herringbone_parallel.core.partition.problem import Problem

# C / B may come out slightly above a whole number by rounding; the bound must not rise for that.
TOLERANCE = 1e-9


def least_communication(problem: Problem, partitions: int, greatest: float) -> float:
    """Return the seconds of communication that every split pays if no partition costs more than `greatest`.

    Each transfer counts once.
    """
    # Union-find over the groups; the root of a component holds its cost.
    component = list(range(problem.size))
    cost = problem.cost.tolist()

    def find(group: int) -> int:
        while component[group] != group:
            # Path halving keeps the trees flat.
            component[group] = component[component[group]]
            group = component[group]
        return group

    def cuts(amount: float) -> int:
        return max(math.ceil(amount / greatest - TOLERANCE) - 1, 0)

    components, forced, total = problem.size, sum(map(cuts, cost)), 0.0
    # Between two neighbouring durations the components are the same, so the integral is a sum over the sorted flows.
    flows = sorted(problem.flows, key=lambda flow: -flow.seconds)
    thresholds = [flow.seconds for flow in flows[1:]] + [0.0]
    for flow, threshold in zip(flows, thresholds, strict=False):
        for user in flow.users:
            one, other = find(flow.source), find(user)
            if one != other:
                forced -= cuts(cost[one]) + cuts(cost[other])
                component[other] = one
                cost[one] += cost[other]
                forced += cuts(cost[one])
                components -= 1
        total += (flow.seconds - threshold) * max(partitions - components, forced, 0)
    return total


def least_greatest_cost(problem: Problem, partitions: int, greatest: float) -> float:
    """Return a lower bound on the greatest cost of any split; `greatest` is the greatest cost of a known split.

        bound = least_greatest_cost(problem, 4, greatest=0.27)      # at most 0.27

    The bound is the greater of the average, with the unavoidable communication, and the costliest group.
    """
    communication = 2 * problem.seconds_share * least_communication(problem, partitions, greatest)
    average = (float(problem.cost.sum()) + communication) / partitions
    return min(max(average, float(problem.cost.max())), greatest)
