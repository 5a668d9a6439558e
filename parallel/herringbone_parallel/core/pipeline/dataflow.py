"""Assigns a computation's operations to ranks, and cuts it into the segments that each rank runs.

An adaptor traces one microbatch of a step, forward and backward, into `Node`s. This module never sees what they
compute.

    assign_ranks    says on which rank each node runs: where it was assigned, else where its data is
    cut             gives each rank its segments, and the edges, which are the values that travel

A segment is all that a rank can compute without waiting, at one point of its way through the pipeline. Every rank cuts
the same nodes in the same way, so edges have the same numbers everywhere and ranks need not negotiate.

`cut` works in these steps:

    [1] need      mark the nodes that results and effects need, backwards from them; note the values that travel
    [2] stage     number each node's stage: one more than its inputs' wherever the rank or the phase changes
    [3] segment   collect a rank's nodes of one stage and phase into a segment
    [4] merge     join a segment that waits for nothing to the one before it
    [5] connect   fill in the values and edges that each segment takes and gives
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD

# The owner of a node that every rank computes for itself, from values that every rank has.
EVERYWHERE = -1

# An output of a node: the number of the node in the list of all nodes, and the number of its output.
Output = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation; the nodes that it needs precede it in the list of all nodes.

    >>> Node(inputs=((0, 0),), assigned=1).assigned
    1

    `assigned` is the rank that the user or the partition chose; None leaves it to the data. `state_rank` is the rank
    whose state the node touches, EVERYWHERE for state that every rank has. `backward_of` is the node whose gradient, or
    a part of it, this node computes. A `constant` costs nothing to repeat, and an `available` node is one. `waits` are
    nodes that must run before it on the same rank.
    """

    inputs: tuple[Output, ...] = ()
    waits: tuple[int, ...] = ()
    assigned: int | None = None
    state_rank: int | None = None
    backward_of: int | None = None
    backward: bool = False
    constant: bool = False
    # No segment computes it, because every rank has it: an argument of the step, or a `captured` value.
    available: bool = False
    captured: bool = False
    # It changes more than its outputs, so it runs even if nothing uses them.
    effect: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that travels from one rank to another."""

    value: Output
    source: int
    target: int


@dataclass(slots=True)
class Segment:
    """The nodes that one rank computes for one microbatch without waiting, in order.

    `takes` are values of earlier segments or from other ranks. `gives` are values that later segments, other ranks or
    the results need. `receives` and `sends` are numbers of edges. A microbatch may run it once the microbatch before
    has passed the rank's segment number `behind`: the segment itself, or a later one that shares changing state with
    it.
    """

    phase: str
    nodes: list[int] = field(default_factory=list)
    takes: list[Output] = field(default_factory=list)
    gives: list[Output] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The edges of all ranks, by number, and the segments of each rank, in the order in which it runs them."""

    edges: tuple[Edge, ...]
    segments: tuple[tuple[Segment, ...], ...]

    def arriving(self, rank: int, values: Iterable[Output]) -> dict[Output, int]:
        """Return the edges that bring these values to a rank which does not compute them."""
        wanted = set(values)
        return {
            edge.value: number for number, edge in enumerate(self.edges) if edge.target == rank and edge.value in wanted
        }


class _Site(NamedTuple):
    """A node on one of the ranks that run it: a node with owner EVERYWHERE may run on several."""

    node: int
    rank: int


class _Stage(NamedTuple):
    """The point of the way at which a node runs: the number of changes of rank or phase before it, and its phase."""

    number: int
    phase: str

    @property
    def order(self) -> tuple[int, bool]:
        """The key by which stages run: of two with one number, the forward comes first."""
        return self.number, self.phase == BACKWARD


def assign_ranks(nodes: Sequence[Node], *, default: int) -> list[int]:
    """Return the owner of each node, a rank or EVERYWHERE.

    >>> assign_ranks([Node(), Node(inputs=((0, 0),), assigned=1), Node(inputs=((1, 0), (0, 0)))], default=0)
    [-1, 1, 1]

    State decides first, then the assigned rank, then, for a gradient, the rank of its forward node. Any other node runs
    where its newest input was computed, so data moves when an operation needs it, and not before. A node whose inputs
    every rank has runs on all ranks or, when it has an effect, on `default`.
    """
    owners: list[int] = []
    for node in nodes:
        if node.state_rank is not None:
            owners.append(node.state_rank)
        elif node.constant:
            owners.append(EVERYWHERE)
        elif node.assigned is not None:
            owners.append(node.assigned)
        elif node.backward_of is not None and owners[node.backward_of] != EVERYWHERE:
            owners.append(owners[node.backward_of])
        else:
            newest = max((number for number, _ in node.inputs if owners[number] != EVERYWHERE), default=None)
            # An effect on every rank would happen several times.
            without_data = default if node.effect else EVERYWHERE
            owners.append(without_data if newest is None else owners[newest])
    return owners


def cut(
    nodes: Sequence[Node],
    owners: Sequence[int],
    ranks: int,
    results: Callable[[int], Iterable[Output]],
    *,
    backward_at_once: bool = False,
) -> Cut:
    """Cut the nodes into each rank's segments; `results(rank)` are the values that a rank must have in the end.

    Nodes that no result and no effect needs are left out. With `backward_at_once`, for a schedule that prefers
    backwards, a backward that waits for nothing shares a segment with its forward, as on the last rank.
    """
    return _Cutter(nodes, owners, ranks, backward_at_once).cut([list(results(rank)) for rank in range(ranks)])


class _Cutter:
    """The steps [1] to [5] of one `cut`."""

    def __init__(self, nodes: Sequence[Node], owners: Sequence[int], ranks: int, backward_at_once: bool) -> None:
        self._nodes, self._owners, self._ranks = nodes, owners, ranks
        self._backward_at_once = backward_at_once
        self._needed: set[_Site] = set()
        self._edges: set[Edge] = set()
        # The nodes that depend on an argument of the step.
        self._argument_users: set[int] = set()
        # Inputs precede their users, so one pass finds all.
        for number, node in enumerate(nodes):
            is_argument = node.available and not node.captured
            if is_argument or any(before in self._argument_users for before, _ in node.inputs):
                self._argument_users.add(number)

    def cut(self, results: Sequence[Sequence[Output]]) -> Cut:
        for rank, values in enumerate(results):
            for value in values:
                self._need(value, rank)
        for number, node in enumerate(self._nodes):
            if node.effect:
                owner = self._owners[number]
                for rank in range(self._ranks) if owner == EVERYWHERE else (owner,):
                    self._needed.add(_Site(number, rank))
        self._need_inputs()
        # Every rank sorts the same set in the same way, so an edge has one number everywhere.
        edges = tuple(sorted(self._edges, key=lambda edge: (edge.value, edge.target)))
        stages = self._stages()
        numbered = {edge: number for number, edge in enumerate(edges)}
        return Cut(
            edges, tuple(tuple(self._segments(rank, stages, numbered, results[rank])) for rank in range(self._ranks))
        )

    def _need(self, value: Output, rank: int) -> None:
        """Mark a value's node as needed where it runs, and add an edge if that is another rank."""
        owner = self._owners[value[0]]
        # This rank computes the edges of all ranks, not only its own, because all must number them alike.
        if owner in (EVERYWHERE, rank):
            self._needed.add(_Site(value[0], rank))
        else:
            self._needed.add(_Site(value[0], owner))
            self._edges.add(Edge(value, owner, rank))

    def _need_inputs(self) -> None:
        """Mark all that the needed nodes need: [1]."""
        # Inputs precede their users, so one pass from the end sees a node after all its users.
        for number in range(len(self._nodes) - 1, -1, -1):
            for rank in self._ranks_of(number):
                for value in self._nodes[number].inputs:
                    self._need(value, rank)
                for before in self._nodes[number].waits:
                    if self._owners[before] in (EVERYWHERE, rank):
                        self._needed.add(_Site(before, rank))

    def _stages(self) -> dict[_Site, _Stage]:
        """Return the stage of every needed node on each of its ranks: [2].

        A node that needs no argument, such as the read of a variable, could run at once. It waits for its first user,
        so that no segment consists of odds and ends.
        """
        stages: dict[_Site, _Stage] = {}
        users: dict[_Site, list[_Site]] = defaultdict(list)
        waiting: list[_Site] = []
        backward: list[bool] = []
        for number, node in enumerate(self._nodes):
            # A node that uses a gradient is backward, even if it was not traced as such.
            backward.append(node.backward or any(backward[before] for before, _ in node.inputs))
            phase = BACKWARD if backward[number] else FORWARD
            for rank in self._ranks_of(number):
                site = _Site(number, rank)
                stage = 0
                for before in self._sites_before(site):
                    if before in stages:
                        changes = before.rank != rank or stages[before].phase != phase
                        stage = max(stage, stages[before].number + changes)
                    else:
                        # The input waits for its first user, so its stage follows from its users below.
                        users[before].append(site)
                if self._can_wait(site, stages):
                    waiting.append(site)
                else:
                    stages[site] = _Stage(stage, phase)
        # Users follow their inputs, so from the end every user has its stage before its inputs ask for it.
        for site in reversed(waiting):
            # A value for another rank is made one stage earlier. Otherwise two ranks whose segments of one stage need
            # each other's values would both wait for ever.
            needed = [
                _Stage(stages[user].number - (user.rank != site.rank), stages[user].phase) for user in users[site]
            ]
            # A value that only a result needs is made in the end.
            last = _Stage(len(self._nodes), BACKWARD)
            stages[site] = min(needed, key=lambda stage: stage.order, default=last)
        return stages

    def _ranks_of(self, number: int) -> list[int]:
        return [rank for rank in range(self._ranks) if (number, rank) in self._needed]

    def _sites_before(self, site: _Site) -> Iterable[_Site]:
        """Yield the sites whose values a node needs or waits for; constants are always there and need no site."""
        node = self._nodes[site.node]
        for before, _ in node.inputs:
            if not self._nodes[before].constant:
                owner = self._owners[before]
                yield _Site(before, site.rank if owner == EVERYWHERE else owner)
        for before in node.waits:
            if (before, site.rank) in self._needed and not self._nodes[before].constant:
                yield _Site(before, site.rank)

    def _can_wait(self, site: _Site, stages: dict[_Site, _Stage]) -> bool:
        """Return True if a node may wait for its first user: nothing before it has a stage, and it has no effect."""
        node = self._nodes[site.node]
        if node.effect or any(before in stages for before in self._sites_before(site)):
            return False
        # A backward node gains nothing by running early; a forward one that uses an argument starts the pipeline.
        return site.node not in self._argument_users or node.backward

    def _segments(
        self, rank: int, stages: dict[_Site, _Stage], numbered: dict[Edge, int], results: Sequence[Output]
    ) -> list[Segment]:
        """Return a rank's segments in order, complete: [3] to [5]."""
        # Another rank's value changes the stage, so the nodes of one stage and phase run without waiting in between.
        by_stage: dict[_Stage, Segment] = {}
        for number, node in enumerate(self._nodes):
            if (number, rank) in self._needed and not node.constant:
                stage = stages[_Site(number, rank)]
                by_stage.setdefault(stage, Segment(stage.phase)).nodes.append(number)
        arrives = {edge.value: number for edge, number in numbered.items() if edge.target == rank}
        leaves = {number: edge.value for edge, number in numbered.items() if edge.source == rank}
        # A value that its target only returns as a result may arrive late: no rank waits for it.
        awaited = {edge.value[0] for edge in numbered if edge.source == rank and self._computes_with(edge)}
        ordered = [by_stage[stage] for stage in sorted(by_stage, key=lambda stage: stage.order)]
        segments = self._merged(ordered, arrives, awaited)
        home = {number: segment for segment in segments for number in segment.nodes}
        for segment in segments:
            self._connect(segment, home, arrives)
        received: set[int] = set()
        for segment in segments:
            # A received value is kept until its last use, so only its first user receives it.
            segment.receives = sorted(set(segment.receives) - received)
            received.update(segment.receives)
        self._order_microbatches(segments)
        # Other ranks and the results may need values that no later segment of this rank takes.
        for number, value in sorted(leaves.items()):
            home[value[0]].sends.append(number)
            _add(home[value[0]].gives, value)
        for value in results:
            if value[0] in home:
                _add(home[value[0]].gives, value)
        return segments

    def _computes_with(self, edge: Edge) -> bool:
        """Return True if an edge's target computes with the value, and does not only return it as a result."""
        return any(
            (number, edge.target) in self._needed and edge.value in node.inputs
            for number, node in enumerate(self._nodes)
        )

    def _merged(
        self, segments: Sequence[Segment], arrives: Collection[Output], awaited: Collection[int]
    ) -> list[Segment]:
        """Join a segment that waits for nothing to the one before it, unless a rank waits for that one: [4]."""
        merged: list[Segment] = []
        received: set[Output] = set()
        for segment in segments:
            needed = {value for number in segment.nodes for value in self._nodes[number].inputs if value in arrives}
            waits = not needed <= received
            received |= needed
            before = merged[-1] if merged else None
            # A segment sends when it ends: a longer one would make the waiting rank wait longer.
            if before is None or waits or {*awaited} & {*before.nodes} or not self._may_follow(before, segment):
                merged.append(segment)
            else:
                before.nodes = sorted([*before.nodes, *segment.nodes])
        return merged

    def _may_follow(self, before: Segment, segment: Segment) -> bool:
        """Return True if the schedule runs a segment right after the one before, when it could run both."""
        return before.phase == segment.phase or (self._backward_at_once and before.phase == FORWARD)

    def _order_microbatches(self, segments: Sequence[Segment]) -> None:
        """Set `behind` so that microbatches reach changing state in the order of their numbers, as in one process.

        Only forwards matter: a backward changes no state, and a schedule may put all forwards before it.
        """
        touched: list[set[Output]] = []
        changed: list[set[Output]] = []
        for segment in segments:
            state = [
                (value, self._nodes[number].effect)
                for number in segment.nodes
                for value in self._nodes[number].inputs
                if self._nodes[value[0]].captured
            ]
            touched.append({value for value, _ in state})
            changed.append({value for value, changes in state if changes})
        for index, segment in enumerate(segments):
            segment.behind = index
            for later in range(index + 1, len(segments)):
                # A write in one of the two and any use in the other: microbatches must not interleave between them.
                shared = changed[later] & touched[index] or touched[later] & changed[index]
                if shared and segments[later].phase == segment.phase == FORWARD:
                    segment.behind = later

    def _connect(self, segment: Segment, home: dict[int, Segment], arrives: dict[Output, int]) -> None:
        """Add the constants that a segment repeats and the values that it takes, and tell their segments: [5]."""
        constants: set[int] = set()
        waiting = list(segment.nodes)
        while waiting:
            for value in self._nodes[waiting.pop()].inputs:
                before = value[0]
                if self._nodes[before].available:
                    # Every rank has it, so it is taken and never given.
                    _add(segment.takes, value)
                elif self._nodes[before].constant:
                    # Repeat a constant, and the constants that it needs, instead of passing it on.
                    if before not in constants:
                        constants.add(before)
                        waiting.append(before)
                elif value in arrives:
                    _add(segment.takes, value)
                    segment.receives.append(arrives[value])
                elif home[before] is not segment:
                    _add(segment.takes, value)
                    _add(home[before].gives, value)
        segment.nodes = sorted([*segment.nodes, *constants])


def _add(values: list[Output], value: Output) -> None:
    if value not in values:
        values.append(value)
