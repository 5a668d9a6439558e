"""Groups gradients into buckets that are summed together: a sum per parameter would cost one fixed cost each.

    ready_s = final_times([size for _, size in tensors], backward_s=0.080)
    buckets = plan_buckets(tensors, ready_s=ready_s, cost=fit(points))      # sizes follow from the measured links
    buckets = cut_buckets(tensors, first_bytes=1 << 20, most_bytes=25 << 20)    # sizes are settings

Tensors are (kind, bytes) in the order in which their gradients become ready, the reverse of the order of their use.
A bucket holds tensors of one kind (dtype and device), because they share a buffer. Its position is its last tensor's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.links import Cost

# A bucket is large enough once its fixed cost is a fiftieth of its bytes' cost: a larger one only starts later.
_FIXED_PART = 0.02


def cut_buckets(tensors: Sequence[tuple[Hashable, int]], *, first_bytes: int, most_bytes: int) -> list[list[int]]:
    """Cut a sequence of tensors into buckets of a given size; return the indices in each.

    >>> cut_buckets([("f", 1), ("f", 3), ("h", 2), ("f", 3), ("f", 3)], first_bytes=1, most_bytes=6)
    [[0], [2], [1, 3], [4]]

    A bucket is full once it has `most_bytes`. The first one is full once it has `first_bytes`, so that the network
    starts early.
    """
    closed: list[list[int]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index, (kind, size) in enumerate(tensors):
        open_buckets.setdefault(kind, []).append(index)
        filled[kind] = filled.get(kind, 0) + size
        # A tensor is never divided, so a bucket may exceed its size by its last tensor.
        if filled[kind] >= (most_bytes if closed else first_bytes):
            closed.append(open_buckets.pop(kind))
            filled[kind] = 0
    return sorted([*closed, *open_buckets.values()], key=lambda bucket: bucket[-1])


def plan_buckets(tensors: Sequence[tuple[Hashable, int]], *, ready_s: Sequence[float], cost: Cost) -> list[list[int]]:
    """Cut a sequence of tensors into the buckets whose last sum is back earliest; return the indices in each.

    >>> tensors = [("f", 10)] * 6
    >>> plan_buckets(tensors, ready_s=[1, 2, 3, 4, 5, 6], cost=Cost(alpha_s=1, beta_s=0.3))
    [[0], [1, 2, 3, 4, 5]]
    >>> plan_buckets(tensors, ready_s=[10, 20, 30, 40, 50, 60], cost=Cost(alpha_s=1, beta_s=0.3))
    [[0, 1, 2, 3], [4], [5]]

    `ready_s` has the time at which each tensor is final, `cost` the time of a sum; sums run one after another. For one
    kind the cut is exact: no cut into runs of tensors is better. For several kinds, the buckets of that cut are split
    by kind. A bucket then joins the next of its kind if the last sum is back earlier for it, or no later and the bucket
    is small for its fixed cost. Raises `ParallelError` for times that are missing or decrease.
    """
    if len(ready_s) != len(tensors) or any(a > b for a, b in pairwise(ready_s)):
        raise ParallelError(
            f"{len(tensors)} tensors and {len(ready_s)} times: one for each, none before an earlier one"
        )
    drafts: list[_Draft] = []
    for run in _cut_runs([size for _, size in tensors], ready_s, cost):
        of_kind: dict[Hashable, _Draft] = {}
        for index in run:
            kind, size = tensors[index]
            of_kind[kind] = of_kind.get(kind, _Draft(kind, (), 0)).joined(_Draft(kind, (index,), size))
        drafts += of_kind.values()
    return [list(draft.indices) for draft in _join(drafts, ready_s, cost)]


def final_times(sizes: Sequence[int], backward_s: float) -> list[float]:
    """Return an estimate of when each gradient is final in a backward of `backward_s`: in proportion to the bytes.

    >>> final_times([1, 1, 2], backward_s=4)
    [1.0, 2.0, 4.0]
    """
    total = sum(sizes)
    return [backward_s * done / total if total else backward_s for done in accumulate(sizes)]


def _cut_runs(sizes: Sequence[int], ready_s: Sequence[float], cost: Cost) -> list[list[int]]:
    """Cut into runs: the exact optimum, in time proportional to the number of tensors.

    Let ends[i] be the earliest time at which the sums of the first i tensors are back. With the last cut at j < i,

        ends[i] = min over j of max(ends[j], ready[i]) + alpha + beta (bytes[i] - bytes[j])

    `ends` never decreases. So the cuts with ends[j] <= ready[i] are a prefix, whose end only moves forward with i. For
    these the link waits for tensor i, and the last of them is best. For all other cuts the tensor waits for the link,
    and the one with the least ends[j] - beta bytes[j] is best. A monotonic queue has that one at its front.
    """
    filled = [0, *accumulate(sizes)]
    ends = [0.0]
    cuts = [0]
    idle = 0  # the last cut after which the link waits for tensor i
    busy: deque[int] = deque()  # cuts after `idle`, by increasing ends[j] - beta bytes[j]

    def key_s(cut: int) -> float:
        return ends[cut] - cost.beta_s * filled[cut]

    for i, ready in enumerate(ready_s, start=1):
        newest = i - 1
        # A later cut with a smaller key is better for every i to come, so earlier cuts with larger keys are useless.
        while busy and key_s(busy[-1]) >= key_s(newest):
            busy.pop()
        busy.append(newest)
        # The prefix of cuts after which the link is free before tensor i is ready; it only grows.
        while idle + 1 < i and ends[idle + 1] <= ready:
            idle += 1
        while busy and busy[0] <= idle:
            busy.popleft()
        choices = [idle, *list(busy)[:1]]
        cut = min(choices, key=lambda j: max(ends[j], ready) - cost.beta_s * filled[j])
        cuts.append(cut)
        ends.append(max(ends[cut], ready) + cost.seconds(filled[i] - filled[cut]))
    # Follow the best last cuts back from the end.
    runs = []
    end = len(sizes)
    while end:
        runs.append(list(range(cuts[end], end)))
        end = cuts[end]
    return runs[::-1]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A bucket that may still join another."""

    kind: Hashable
    indices: tuple[int, ...]
    size: int

    def joined(self, other: _Draft) -> _Draft:
        return _Draft(self.kind, tuple(sorted(self.indices + other.indices)), self.size + other.size)


def _join(drafts: list[_Draft], ready_s: Sequence[float], cost: Cost) -> list[_Draft]:
    """Join buckets with the next of their kind, as long as the last sum is not back later for it."""

    def end_s(order: Sequence[_Draft]) -> float:
        end = 0.0
        for draft in order:
            end = max(end, ready_s[draft.indices[-1]]) + cost.seconds(draft.size)
        return end

    drafts = sorted(drafts, key=lambda draft: draft.indices[-1])
    best_s = end_s(drafts)
    first = 0
    while first < len(drafts):
        later = (i for i in range(first + 1, len(drafts)) if drafts[i].kind == drafts[first].kind)
        if (second := next(later, None)) is not None:
            joined = drafts[first].joined(drafts[second])
            candidate = [*drafts[:first], *drafts[first + 1 : second], joined, *drafts[second + 1 :]]
            joined_s = end_s(candidate)
            small = cost.alpha_s > _FIXED_PART * cost.beta_s * joined.size
            # On a tie a join saves messages, but a large bucket would only wait longer for its last tensor.
            if joined_s < best_s or (joined_s == best_s and small):
                drafts, best_s = candidate, joined_s
                continue
        first += 1
    return drafts
