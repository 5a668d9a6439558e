"""Finds work that a step can defer: values of which only the sum over all microbatches is needed.

The gradient of a weight is a product of two values, x and dy, and a step returns its sum over the microbatches. That
sum equals the product of all x, joined, and all dy, joined. So one product serves several microbatches, and it can
run after everything for which another rank waits (Qi et al. 2023, arXiv 2401.10241).

    defer         takes such products out of a rank's segments
    group_size    returns the number of microbatches that one product serves
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from herringbone_parallel.core.pipeline.dataflow import Node, Output, Segment


@dataclass(frozen=True, slots=True)
class Product:
    """The nodes that compute a value from the values in `joined`, and from no other value that a segment computes."""

    nodes: frozenset[int]
    joined: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Deferring:
    """A segment without its products, and the `deferred` products by the values that they compute."""

    segment: Segment
    deferred: dict[Output, Product]

    @property
    def kept(self) -> list[Output]:
        """The values of a microbatch that must be kept for the products, each once."""
        return list(dict.fromkeys(value for product in self.deferred.values() for value in product.joined))


def defer(
    nodes: Sequence[Node],
    segments: Sequence[Segment],
    sent: Iterable[Output],
    products: Mapping[Output, Product],
    *,
    group: int = 2,
) -> list[Deferring]:
    """Take the products out of a rank's segments where nothing but their sum needs them.

    `sent` are the values that travel to other ranks. `group` is the number of microbatches that one product serves.
    With a group of one nothing is joined, and only segments for which another rank waits get shorter.

    >>> x, dy = (0, 0), (1, 0)
    >>> nodes = [Node(available=True, constant=True), Node(inputs=(x,)), Node(inputs=(x, dy))]
    >>> segment = Segment("backward", nodes=[0, 1, 2], takes=[x], gives=[(2, 0)])
    >>> result, = defer(nodes, [segment], [], {(2, 0): Product(frozenset({2}), (x, dy))})
    >>> result.segment.nodes, result.segment.gives, result.kept
    ([0, 1], [(1, 0)], [(0, 0), (1, 0)])
    """
    # Segments repeat constants, so a constant has no home.
    home = {number: segment for segment in segments for number in segment.nodes if not nodes[number].constant}
    travelling = {number for number, _ in sent}
    users = _users(nodes, segments)

    def is_deferrable(value: Output, product: Product) -> bool:
        segment = home.get(value[0])
        # A product runs as a whole, so all its nodes must be in one segment.
        if segment is None or any(home.get(number) is not segment for number in product.nodes):
            return False
        # A single microbatch's value must exist when another rank, a result or another node needs it.
        wanted = travelling | {number for number, output in segment.gives if (number, output) != value}
        used = any(number in wanted or users[number] - product.nodes for number in product.nodes)
        arrives = all(joined[0] in home or _arrives(nodes, segment, joined) for joined in product.joined)
        # A group of one saves no work; it pays only if another rank gets its message earlier for it.
        return not used and arrives and (group > 1 or bool(segment.sends))

    deferrable = {value: product for value, product in products.items() if is_deferrable(value, product)}
    needed = {value for product in deferrable.values() for value in product.joined}
    results: list[Deferring] = []
    for segment in segments:
        deferred = {value: product for value, product in deferrable.items() if home[value[0]] is segment}
        trimmed = _without(nodes, segment, deferred)
        # A product may need values of an earlier segment than its own, so every segment gives what any product needs.
        missing = {value for value in needed if home.get(value[0]) is segment} - {*trimmed.gives}
        trimmed.gives += sorted(missing)
        results.append(Deferring(trimmed, deferred))
    return results


def _arrives(nodes: Sequence[Node], segment: Segment, value: Output) -> bool:
    """Return True if each microbatch brings its own value: an argument of the step, or a message of another rank."""
    # A captured value, such as a weight, is one for all microbatches: joining it would be wrong.
    return value in segment.takes and not nodes[value[0]].captured


def _users(nodes: Sequence[Node], segments: Sequence[Segment]) -> dict[int, set[int]]:
    """Return the nodes of the segments that compute with each node, or wait for it."""
    users: dict[int, set[int]] = defaultdict(set)
    for segment in segments:
        for number in segment.nodes:
            for before in (*(before for before, _ in nodes[number].inputs), *nodes[number].waits):
                users[before].add(number)
    return users


def _without(nodes: Sequence[Node], segment: Segment, products: Mapping[Output, Product]) -> Segment:
    """Return a copy of the segment without the products, and without the values that only they took."""
    removed = {number for product in products.values() for number in product.nodes}
    kept = [number for number in segment.nodes if number not in removed]
    # A value that only the products took stays if the segment must give it.
    used = {value for number in kept for value in nodes[number].inputs}
    return replace(
        segment,
        nodes=kept,
        takes=[value for value in segment.takes if value in used or value in segment.gives],
        gives=[value for value in segment.gives if value not in products],
    )


def group_size(kept_bytes: int, sum_bytes: int, microbatches: int) -> int:
    """Return the number of microbatches that one product serves, when each keeps `kept_bytes` for its products.

    The kept values of a group are no larger than the sums (`sum_bytes`), which take their memory in any case.

    >>> group_size(kept_bytes=2, sum_bytes=16, microbatches=8), group_size(16, 16, 8), group_size(100, 16, 8)
    (8, 1, 1)
    """
    return max(1, min(microbatches, sum_bytes // max(1, kept_bytes)))
