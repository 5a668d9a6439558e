"""Work that a step may put off: what only the sums over all microbatches need.

The gradient of a weight is a product of two values, x and dy, and the step returns its sum over the microbatches. That
is the product of all x, joined, and all dy: it is computed once for several microbatches, and after whatever another
rank waits for. Source of the second: Qi et al. 2023, arXiv 2401.10241.

    defer         takes such products out of a rank's segments
    group_size    says for how many microbatches one is computed at once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from herringbone_parallel.core.dataflow import Node, Output, Segment


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
    travelling = {number for number, _ in sent}
    put_off: dict[int, dict[Output, Product]] = {id(segment): {} for segment in segments}
    for value, product in products.items():
        homes = {id(home[number]) for number in product.nodes if number in home}
        whole = len(homes) == 1 and all(number in home for number in product.nodes)
        if not whole or product.nodes & travelling or _has_users(nodes, home, product):
            continue
        here = home[value[0]]
        if group == 1 and not here.sends:
            continue
        if all(joined[0] in home or _comes(nodes, here, joined) for joined in product.joined):
            put_off[id(here)][value] = product
    everything = {id(segment): _without(nodes, segment, put_off[id(segment)]) for segment in segments}
    # What a product needs may have been made in a segment before its own.
    needed = {value for products in put_off.values() for product in products.values() for value in product.joined}
    for segment in everything.values():
        inside = set(segment.nodes)
        segment.gives += sorted(
            value
            for value in needed
            if value[0] in inside and not nodes[value[0]].constant and value not in segment.gives
        )
    return [Deferring(everything[id(segment)], put_off[id(segment)]) for segment in segments]


def _comes(nodes: Sequence[Node], segment: Segment, value: Output) -> bool:
    """Say whether each microbatch brings a value to a segment: an argument, or what another rank computes."""
    return value in segment.takes and not nodes[value[0]].captured


def _has_users(nodes: Sequence[Node], home: Mapping[int, Segment], product: Product) -> bool:
    """Say whether anything else on this rank computes with a product, or waits for it."""
    return any(
        number not in product.nodes
        and (any(before in product.nodes for before, _ in nodes[number].inputs) or product.nodes & {*nodes[number].waits})
        for number in home
    )


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
