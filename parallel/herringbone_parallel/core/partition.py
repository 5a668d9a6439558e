"""Which partition each module belongs to: decided on a list of costs, without a framework.

The list is the model's modules in the order of definition (pre-order), each with the bytes of its *own* parameters.
Modules that share a parameter belong together. `by_bytes` cuts the list in contiguous runs whose greatest sum is
least: the exact min-max chain partition (dynamic programming, O(partitions x modules^2)).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from herringbone_spec.errors import ParallelError


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """One module: its dotted path ("" is the model itself), and its own parameters by identity with their bytes."""

    path: str
    parameters: Mapping[int, int]


def by_bytes(modules: Sequence[ModuleCost], partitions: int) -> dict[str, int]:
    """Assign each module with parameters of its own to a partition, balanced by parameter bytes.

    >>> by_bytes([ModuleCost("a", {1: 60}), ModuleCost("b", {2: 40}), ModuleCost("c", {3: 40})], 2)
    {'a': 0, 'b': 1, 'c': 1}

    Raises `ParallelError` when there are fewer such modules (shared ones counted once) than partitions.
    """
    groups = _merge_shared(modules)
    if len(groups) < partitions:
        raise ParallelError(
            f"the model has {len(groups)} separable modules with parameters, too few for {partitions} partitions:"
            f" {[module.path for group in groups for module in group]}. Lower `partitions`."
        )
    weights = [sum(_union(group).values()) for group in groups]
    starts = _min_max_cuts(weights, partitions)
    assigned = {}
    for index, group in enumerate(groups):
        partition = sum(start <= index for start in starts) - 1
        for module in group:
            assigned[module.path] = partition
    return assigned


def _union(group: Iterable[ModuleCost]) -> dict[int, int]:
    merged: dict[int, int] = {}
    for module in group:
        merged.update(module.parameters)
    return merged


def _merge_shared(modules: Sequence[ModuleCost]) -> list[list[ModuleCost]]:
    """Group modules that share a parameter; a group stands where its first member stood."""
    groups: list[list[ModuleCost]] = []
    home: dict[int, list[ModuleCost]] = {}
    for module in modules:
        if not module.parameters:
            continue
        known: list[list[ModuleCost]] = []
        for identity in module.parameters:
            group = home.get(identity)
            if group is not None and all(group is not other for other in known):
                known.append(group)
        target = known[0] if known else []
        if not known:
            groups.append(target)
        for other in known[1:]:
            target.extend(other)
            groups = [group for group in groups if group is not other]
        target.append(module)
        for member in target:
            home.update(dict.fromkeys(member.parameters, target))
    return groups


def _min_max_cuts(weights: Sequence[int], partitions: int) -> list[int]:
    """Return where each of the contiguous runs starts so that the greatest sum is least.

    Every run has at least one element. Among equals, later cuts win: early ranks also keep more activations.
    """
    count = len(weights)
    prefix = [0]
    for weight in weights:
        prefix.append(prefix[-1] + weight)
    best = [prefix[end] for end in range(count + 1)]
    choice: list[list[int]] = [[0] * (count + 1)]
    for runs in range(2, partitions + 1):
        row, cuts = [0] * (count + 1), [0] * (count + 1)
        for end in range(runs, count + 1):
            row[end], cuts[end] = min((max(best[cut], prefix[end] - prefix[cut]), -cut) for cut in range(runs - 1, end))
            cuts[end] = -cuts[end]
        best = row
        choice.append(cuts)
    starts = []
    end = count
    for runs in range(partitions, 0, -1):
        end = choice[runs - 1][end]
        starts.append(end)
    return sorted(starts)
