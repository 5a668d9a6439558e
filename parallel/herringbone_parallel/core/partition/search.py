"""Makes a split better by moves and swaps, beyond contiguous runs: descent by (greatest cost, communication).

A step takes a group off the costliest partition, or swaps it for a lighter one. When none helps any more, groups
move wherever total communication falls and the greatest cost does not rise. Work is counted in evaluated moves, not
in seconds, so that the same tree gives the same split on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from herringbone_parallel.core.partition.problem import Problem, weigh

# Evaluated moves: about a third of a second.
MAX_EVALUATIONS = 15_000
# Swaps looked at in one step, the most promising first.
MAX_SWAPS = 400
TOLERANCE = 1e-12


def improve(problem: Problem, labels: list[int], partitions: int, memory_cap: float | None = None) -> list[int]:
    """Return a split that is no worse; `labels` must keep within `memory_cap` bytes, and so does the result."""
    return _descend(_Split(problem, labels, partitions, memory_cap))


def _descend(split: _Split) -> list[int]:
    while split.evaluations < MAX_EVALUATIONS and (split.relieve() or split.swap()):
        pass
    while split.evaluations < MAX_EVALUATIONS and split.quieten():
        pass
    return split.labels


class _Split:
    """A split under change: its labels, and what each partition carries."""

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
        # How many ends (source and users) of each flow are on each partition.
        self._ends = [[0] * partitions for _ in problem.flows]
        for index, flow in enumerate(problem.flows):
            for group in (flow.source, *flow.users):
                self._flows_of[group].append(index)
                self._ends[index][labels[group]] += 1

    def relieve(self) -> bool:
        """Take the best group off the costliest partition; False when every move is a loss."""
        costliest = self._costliest()
        before = self._cost[costliest]
        best = None
        for group in self._groups_on(costliest):
            for target in range(self._partitions):
                if target != costliest and self._cost[target] + self._costs[group] < before - TOLERANCE:
                    rank = self._after(group, target)
                    if rank is not None and (best is None or rank < best[0]):
                        best = rank, group, target
        if best is None or best[0][0] >= before - TOLERANCE:
            return False
        self._move(best[1], best[2])
        return True

    def swap(self) -> bool:
        """Swap a group of the costliest partition for a lighter one elsewhere; False when no swap found helps."""
        costliest = self._costliest()
        before = self._cost[costliest]
        for group, other in self._promising_swaps(costliest):
            target = self.labels[other]
            self._move(group, target)
            rank = self._after(other, costliest)
            fits = self._memory[target] - self._memories[other] <= self._cap
            if fits and rank is not None and rank[0] < before - TOLERANCE:
                self._move(other, costliest)
                return True
            self._move(group, costliest)
        return False

    def quieten(self) -> bool:
        """Make every move that lowers communication and raises no bottleneck; False when there was none."""
        moved = False
        for group, home in enumerate(self.labels):
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
        """Yield pairs whose difference in cost comes nearest to levelling the two partitions."""
        pairs = []
        mine = sorted(self._groups_on(costliest), key=lambda group: -self._costs[group])[:MAX_SWAPS]
        for other, label in enumerate(self.labels):
            excess = self._cost[costliest] - self._cost[label]
            if label == costliest or excess <= 0:
                continue
            for group in mine:
                difference = self._costs[group] - self._costs[other]
                if 0 < difference < excess:
                    pairs.append((abs(difference - excess / 2), group, other))
        pairs.sort()
        yield from ((group, other) for _, group, other in pairs[:MAX_SWAPS])

    def _after(self, group: int, target: int) -> tuple[float, float] | None:
        """Return (greatest cost, change of communication) after a move; None when it is not allowed."""
        self.evaluations += 1
        home = self.labels[group]
        if self._count[home] == 1 or self._memory[target] + self._memories[group] > self._cap:
            return None
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
        """Add a move's change of communication to `cost`, partition by partition; return its sum in seconds."""
        home = self.labels[group]
        labels, share, change = self.labels, self._problem.seconds_share, 0.0
        for index in self._flows_of[group]:
            flow, ends = self._problem.flows[index], self._ends[index]
            weight = share * flow.seconds
            source = labels[flow.source]
            # Which of the two partitions the flow touches, now and then; the others are touched as before.
            left, entered = ends[home] == 1, ends[target] == 0
            if flow.source != group:
                if home != source and left:
                    cost[home] -= weight
                    cost[source] -= weight
                    change -= 2 * flow.seconds
                if target != source and entered:
                    cost[target] += weight
                    cost[source] += weight
                    change += 2 * flow.seconds
                continue
            # The source itself moves: what `home` sent, `target` sends.
            others = sum(1 for partition, count in enumerate(ends) if count and partition not in (home, target))
            sent = others + (not entered)
            sends = others + (not left)
            cost[home] += weight * ((not left) - sent)
            cost[target] += weight * (sends - (not entered))
            change += 2 * flow.seconds * (sends - sent)
        return change
