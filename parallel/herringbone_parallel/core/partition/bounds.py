"""What no split can beat: a lower bound on the greatest cost, by counting.

The greatest cost is at least the average. All partitions together cost the whole model plus twice the communication
(both ends pay), and some communication cannot be avoided:

Keep only the values slower than a threshold t; they join the groups in components. P non-empty partitions that cost
at most B each cut these values at least P - components(t) times, since otherwise they would not hang together in so
few parts; and a component of cost C at least ceil(C / B) - 1 times. The integral over t of the greater of the two is
seconds of communication that every split pays. B is the best split's greatest cost: one that costs more is no better.
"""

from __future__ import annotations

import math

from herringbone_parallel.core.partition.problem import Problem

TOLERANCE = 1e-9


def least_communication(problem: Problem, partitions: int, greatest: float) -> float:
    """Return seconds of communication (each transfer once) that every split pays, if no partition costs more
    than `greatest`.
    """
    component = list(range(problem.size))
    cost = problem.cost.tolist()

    def find(group: int) -> int:
        while component[group] != group:
            component[group] = component[component[group]]
            group = component[group]
        return group

    def cuts(amount: float) -> int:
        return max(math.ceil(amount / greatest - TOLERANCE) - 1, 0)

    components, forced, total = problem.size, sum(map(cuts, cost)), 0.0
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
    """Return a lower bound on the greatest cost of any split, given that of one split.

    It is the greater of the average, with the communication nobody can avoid, and the costliest group.
    """
    communication = 2 * problem.seconds_share * least_communication(problem, partitions, greatest)
    average = (float(problem.cost.sum()) + communication) / partitions
    return min(max(average, float(problem.cost.max())), greatest)
