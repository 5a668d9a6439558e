"""Improves a split by moves and swaps of single groups, beyond contiguous runs.

It is a descent by (greatest cost, communication):

    [1] relieve   take a group off the costliest partition
    [2] swap      exchange a group of the costliest partition for a lighter one
    [3] quieten   when neither helps any more, move groups wherever total communication falls and no cost rises above
                  the greatest

The limit counts evaluated moves rather than seconds, so that every machine finds the same split for the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator

from herringbone_parallel.core.partition.problem import Problem, weigh

# Evaluated moves: they take about a third of a second.
MAX_EVALUATIONS = 15_000
# Swaps evaluated in one step, the most promising first.
MAX_SWAPS = 400
# Costs are sums of floats that moves add and subtract; a smaller difference is rounding, and descents on it could
# cycle.
TOLERANCE = 1e-12


def improve(problem: Problem, labels: list[int], partitions: int, memory_cap: float | None = None) -> list[int]:
    """Return a split that is no worse; `labels` must keep within `memory_cap` bytes, and so does the result."""
    split = _Split(problem, labels, partitions, memory_cap)
    while split.evaluations < MAX_EVALUATIONS and (split.relieve() or split.swap()):
        pass
    while split.evaluations < MAX_EVALUATIONS and split.quieten():
        pass
    return split.labels


class _Split:
    """A split under change: its labels, the loads of its partitions, and the ends of each flow on each partition.

    The loads are updated with every move, because `weigh` would take time proportional to the whole model.
    """

    def __init__(self, problem: Problem, labels: list[int], partitions: int, memory_cap: float | None) -> None:
        self.labels = list(labels)
        self.evaluations = 0
        self._problem = problem
        self._partitions = partitions
        self._cap = float("inf") if memory_cap is None else memory_cap
        loads = weigh(problem, labels, partitions)
        self._cost = loads.cost.tolist()
        self._memory = loads.memory.tolist()
        self._count = [labels.count(partition) for partition in range(partitions)]
        self._costs = problem.cost.tolist()
        self._memories = problem.memory.tolist()
        self._flows_of: list[list[int]] = [[] for _ in labels]
        # The number of ends (source and users) of each flow on each partition; a flow reaches it if that is not 0.
        self._ends = [[0] * partitions for _ in problem.flows]
        for index, flow in enumerate(problem.flows):
            for group in (flow.source, *flow.users):
                self._flows_of[group].append(index)
                self._ends[index][labels[group]] += 1

    def relieve(self) -> bool:
        """Take the best group off the costliest partition [1]; return False when every move is a loss."""
        costliest = self._costliest()
        before = self._cost[costliest]
        best = None
        for group in self._groups_on(costliest):
            for target in range(self._partitions):
                # Skip targets that would become as costly themselves, even without communication.
                if target != costliest and self._cost[target] + self._costs[group] < before - TOLERANCE:
                    rank = self._after(group, target)
                    if rank is not None and (best is None or rank < best[0]):
                        best = rank, group, target
        if best is None or best[0][0] >= before - TOLERANCE:
            return False
        self._move(best[1], best[2])
        return True

    def swap(self) -> bool:
        """Swap a group of the costliest partition for a lighter one [2]; return False when no evaluated swap helps."""
        costliest = self._costliest()
        before = self._cost[costliest]
        for group, other in self._promising_swaps(costliest):
            target = self.labels[other]
            # Make the first half of the swap to evaluate the second half exactly, and undo it if the swap does not
            # help.
            self._move(group, target)
            rank = self._after(other, costliest)
            # `_after` checks the cap of the partition that receives; here `target` receives a group and gives one away.
            fits = self._memory[target] - self._memories[other] <= self._cap
            if fits and rank is not None and rank[0] < before - TOLERANCE:
                self._move(other, costliest)
                return True
            self._move(group, costliest)
        return False

    def quieten(self) -> bool:
        """Make every move that lowers communication and keeps the greatest cost [3]; return False if none did."""
        moved = False
        for group, home in enumerate(self.labels):
            # Only a partition that shares a flow with the group can lower its communication.
            near = {
                partition
                for index in self._flows_of[group]
                for partition, ends in enumerate(self._ends[index])
                if ends and partition != home
            }
            for target in sorted(near):
                if self.evaluations >= MAX_EVALUATIONS:
                    return False
                rank = self._after(group, target)
                if rank is not None and rank[1] < -TOLERANCE and rank[0] <= max(self._cost) + TOLERANCE:
                    self._move(group, target)
                    moved = True
                    break
        return moved

    def _costliest(self) -> int:
        return max(range(self._partitions), key=lambda partition: self._cost[partition])

    def _groups_on(self, partition: int) -> list[int]:
        return [group for group, label in enumerate(self.labels) if label == partition]

    def _promising_swaps(self, costliest: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of groups, those first whose difference in cost best levels the two partitions."""
        pairs = []
        own = sorted(self._groups_on(costliest), key=lambda group: -self._costs[group])[:MAX_SWAPS]
        for other, label in enumerate(self.labels):
            excess = self._cost[costliest] - self._cost[label]
            if label == costliest or excess <= 0:
                continue
            for group in own:
                difference = self._costs[group] - self._costs[other]
                if 0 < difference < excess:
                    pairs.append((abs(difference - excess / 2), group, other))
        pairs.sort()
        yield from ((group, other) for _, group, other in pairs[:MAX_SWAPS])

    def _after(self, group: int, target: int) -> tuple[float, float] | None:
        """Return (greatest cost, change of communication) after a move, or None when the move is not allowed."""
        self.evaluations += 1
        home = self.labels[group]
        # No partition may be empty.
        if self._count[home] == 1 or self._memory[target] + self._memories[group] > self._cap:
            return None
        # A copy: an evaluation must not change the split.
        cost = list(self._cost)
        cost[home] -= self._costs[group]
        cost[target] += self._costs[group]
        change = self._transfer(group, target, cost)
        return max(cost), change

    def _move(self, group: int, target: int) -> None:
        home = self.labels[group]
        self._transfer(group, target, self._cost)
        for amounts, amount in ((self._cost, self._costs[group]), (self._memory, self._memories[group])):
            amounts[home] -= amount
            amounts[target] += amount
        self._count[home] -= 1
        self._count[target] += 1
        for index in self._flows_of[group]:
            self._ends[index][home] -= 1
            self._ends[index][target] += 1
        self.labels[group] = target

    def _transfer(self, group: int, target: int, cost: list[float]) -> float:
        """Add a move's change of communication to the `cost` of each partition; return the total change in seconds.

        The counts of ends must still be those before the move.
        """
        home = self.labels[group]
        labels, share, change = self.labels, self._problem.seconds_share, 0.0
        for index in self._flows_of[group]:
            flow, ends = self._problem.flows[index], self._ends[index]
            weight = share * flow.seconds
            source = labels[flow.source]
            # The move can change only whether the flow reaches `home` and `target`, not the other partitions.
            leaves, enters = ends[home] == 1, ends[target] == 0
            if flow.source != group:
                if home != source and leaves:
                    cost[home] -= weight
                    cost[source] -= weight
                    change -= 2 * flow.seconds
                if target != source and enters:
                    cost[target] += weight
                    cost[source] += weight
                    change += 2 * flow.seconds
                continue
            # The source itself moves, so `target` sends to every other partition that `home` sent to.
            others = sum(1 for partition, count in enumerate(ends) if count and partition not in (home, target))
            before = others + (not enters)
            after = others + (not leaves)
            # `home` stops sending and may become a receiver; `target` starts sending and may stop being a receiver.
            cost[home] += weight * ((not leaves) - before)
            cost[target] += weight * (after - (not enters))
            change += 2 * flow.seconds * (after - before)
        return change
