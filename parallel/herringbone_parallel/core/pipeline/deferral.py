"""Work that a step may put off: what only the sums over all microbatches need.

The gradient of a weight is a product of two values, x and dy, and the step returns its sum over the microbatches. That
is the product of all x, joined, and all dy: it is computed once for several microbatches, and after whatever another
rank waits for. Source of the second: Qi et al. 2023, arXiv 2401.10241.

    defer         takes such products out of a rank's segments
    group_size    says for how many microbatches one is computed at once
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from herringbone_parallel.core.pipeline.dataflow import Node, Output, Segment


@dataclass(frozen=True, slots=True)
class Product:
    """The nodes that make a value from those that are `joined`, and from nothing else that a segment computes."""

    nodes: frozenset[int]
    joined: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Deferring:
    """A segment without its products: those that it `puts_off`, by the values that they make."""

    segment: Segment
    puts_off: dict[Output, Product]

    @property
    def takes(self) -> list[Output]:
        """What must be kept of a microbatch for the products."""
        return list(dict.fromkeys(value for product in self.puts_off.values() for value in product.joined))


def defer(
    nodes: Sequence[Node],
    segments: Sequence[Segment],
    sent: Iterable[Output],
    products: Mapping[Output, Product],
    *,
    group: int = 2,
) -> list[Deferring]:
    """Take the products out of a rank's segments, where nothing but the sum needs them; `sent` are values that travel.

    With a `group` of one microbatch there is nothing to join: only segments are relieved that others wait for.

    >>> x, dy = (0, 0), (1, 0)
    >>> nodes = [Node(given=True, constant=True), Node(inputs=(x,)), Node(inputs=(x, dy))]
    >>> segment = Segment("backward", nodes=[0, 1, 2], takes=[x], gives=[(2, 0)])
    >>> made, = defer(nodes, [segment], [], {(2, 0): Product(frozenset({2}), (x, dy))})
    >>> made.segment.nodes, made.segment.gives, made.takes
    ([0, 1], [(1, 0)], [(0, 0), (1, 0)])
    """
    home = {number: segment for segment in segments for number in segment.nodes if not nodes[number].constant}
    elsewhere = {number for number, _ in sent}
    users = _users(nodes, segments)

    def is_free(value: Output, product: Product) -> bool:
        segment = home.get(value[0])
        if segment is None or any(home.get(number) is not segment for number in product.nodes):
            return False
        wanted = elsewhere | {number for number, place in segment.gives if (number, place) != value}
        used = any(number in wanted or users[number] - product.nodes for number in product.nodes)
        come = all(joined[0] in home or _comes(nodes, segment, joined) for joined in product.joined)
        return not used and come and (group > 1 or bool(segment.sends))

    free = {value: product for value, product in products.items() if is_free(value, product)}
    needed = {value for product in free.values() for value in product.joined}
    found: list[Deferring] = []
    for segment in segments:
        puts_off = {value: product for value, product in free.items() if home[value[0]] is segment}
        left = _without(nodes, segment, puts_off)
        # What a product needs may have been made in a segment before its own.
        made = {value for value in needed if home.get(value[0]) is segment} - {*left.gives}
        left.gives += sorted(made)
        found.append(Deferring(left, puts_off))
    return found


def _comes(nodes: Sequence[Node], segment: Segment, value: Output) -> bool:
    """Say whether each microbatch brings a value to a segment: an argument, or what another rank computes."""
    return value in segment.takes and not nodes[value[0]].captured


def _users(nodes: Sequence[Node], segments: Sequence[Segment]) -> dict[int, set[int]]:
    """Return which nodes of the segments compute with each node, or wait for it."""
    found: dict[int, set[int]] = defaultdict(set)
    for segment in segments:
        for number in segment.nodes:
            for before in (*(before for before, _ in nodes[number].inputs), *nodes[number].waits):
                found[before].add(number)
    return found


def _without(nodes: Sequence[Node], segment: Segment, products: Mapping[Output, Product]) -> Segment:
    gone = {number for product in products.values() for number in product.nodes}
    left = [number for number in segment.nodes if number not in gone]
    used = {value for number in left for value in nodes[number].inputs}
    return replace(
        segment,
        nodes=left,
        takes=[value for value in segment.takes if value in used or value in segment.gives],
        gives=[value for value in segment.gives if value not in products],
    )


def group_size(kept_bytes: int, sum_bytes: int, microbatches: int) -> int:
    """Return for how many microbatches products are computed at once, of which each keeps `kept_bytes` for them.

    What is kept is no larger than the sums, which take their memory in any case.

    >>> group_size(kept_bytes=2, sum_bytes=16, microbatches=8), group_size(16, 16, 8), group_size(100, 16, 8)
    (8, 1, 1)
    """
    return max(1, min(microbatches, sum_bytes // max(1, kept_bytes)))
