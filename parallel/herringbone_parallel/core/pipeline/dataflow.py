"""A computation as operations and the values between them: laid over ranks, cut into the segments that each one runs.

An adaptor traces one microbatch of a step, forward and backward, into `Node`s; what they compute is its own business.

    place    says on which rank each node runs: where it was told to, else where its data is
    cut      gives each rank its segments, and the edges, which are the values that travel

A segment is all that a rank can do with what it has at one point of the way through the pipeline. Every rank cuts the
same nodes in the same manner, so edges have the same numbers everywhere and nobody needs to negotiate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from herringbone_parallel.core.pipeline.schedule import BACKWARD, FORWARD

# The owner of a node that every rank computes for itself, from what every rank has.
EVERYWHERE = -1

# An output of a node: its number in the list of all nodes, and which of its outputs.
Output = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation; those that it needs come before it in the list of all.

    >>> Node(inputs=((0, 0),), told=1).told
    1

    `told` is the rank that it was put on, by the user or by the partition; None leaves it to its data. `backward_of` is
    the node whose gradient it computes, or a part of it. A `bound` node touches state that is on one rank or, with
    EVERYWHERE, on each. A `constant` costs nothing to repeat, and what is `given` is one. `waits` are nodes that it
    runs after on the same rank.
    """

    inputs: tuple[Output, ...] = ()
    waits: tuple[int, ...] = ()
    told: int | None = None
    bound: int | None = None
    backward_of: int | None = None
    backward: bool = False
    constant: bool = False
    # Every rank has it, no segment computes it: an argument of the step, or what it was `captured` with.
    given: bool = False
    captured: bool = False
    # It changes something besides its outputs, so it runs although nobody may use them.
    effect: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that travels: which, from whom, to whom."""

    value: Output
    source: int
    target: int


@dataclass(slots=True)
class Segment:
    """What one rank computes for one microbatch without waiting.

    `nodes` are in order. `takes` are values of earlier segments or from other ranks; `gives` those that later segments,
    other ranks or the results need. `receives` and `sends` are numbers of edges. A microbatch runs it when the one
    before has passed the rank's segment `behind`: itself, or a later one with state that either of them changes.
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
        return {e.value: n for n, e in enumerate(self.edges) if e.target == rank and e.value in wanted}


def place(nodes: Sequence[Node], *, default: int) -> list[int]:
    """Return the owner of each node, a rank or EVERYWHERE.

    >>> place([Node(), Node(inputs=((0, 0),), told=1), Node(inputs=((1, 0), (0, 0)))], default=0)
    [-1, 1, 1]

    State decides first, then what the node was told, then, for a gradient, the rank of what it is the gradient of. Any
    other runs where the newest of its values was made: data moves when an operation needs it, and not before. With
    nothing but what all ranks have it runs on all, or, when it has an effect, on `default`.
    """
    owners: list[int] = []
    for node in nodes:
        if node.bound is not None:
            owners.append(node.bound)
        elif node.constant:
            owners.append(EVERYWHERE)
        elif node.told is not None:
            owners.append(node.told)
        elif node.backward_of is not None and owners[node.backward_of] != EVERYWHERE:
            owners.append(owners[node.backward_of])
        else:
            newest = max((number for number, _ in node.inputs if owners[number] != EVERYWHERE), default=None)
            free = default if node.effect else EVERYWHERE
            owners.append(free if newest is None else owners[newest])
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
    backwards, one that waits for nothing is in one segment with its forward, as on the last rank.
    """
    return _Cutting(nodes, owners, ranks, backward_at_once).cut([list(results(rank)) for rank in range(ranks)])


class _Cutting:
    def __init__(self, nodes: Sequence[Node], owners: Sequence[int], ranks: int, backward_at_once: bool) -> None:
        self._nodes, self._owners, self._ranks = nodes, owners, ranks
        self._backward_at_once = backward_at_once
        # What runs, as (node, rank): a node that all compute may be needed on some.
        self._needed: set[tuple[int, int]] = set()
        self._edges: set[Edge] = set()
        # What depends on an argument of the step.
        self._fed: set[int] = set()
        for number, node in enumerate(nodes):
            if (node.given and not node.captured) or any(before in self._fed for before, _ in node.inputs):
                self._fed.add(number)

    def cut(self, results: Sequence[Sequence[Output]]) -> Cut:
        for rank, values in enumerate(results):
            for value in values:
                self._need(value, rank)
        for number, node in enumerate(self._nodes):
            if node.effect:
                owner = self._owners[number]
                for rank in range(self._ranks) if owner == EVERYWHERE else (owner,):
                    self._needed.add((number, rank))
        self._reach()
        edges = tuple(sorted(self._edges, key=lambda edge: (edge.value, edge.target)))
        stages = self._stages()
        numbered = {edge: number for number, edge in enumerate(edges)}
        return Cut(
            edges, tuple(tuple(self._segments(rank, stages, numbered, results[rank])) for rank in range(self._ranks))
        )

    def _need(self, value: Output, rank: int) -> None:
        owner = self._owners[value[0]]
        if owner in (EVERYWHERE, rank):
            self._needed.add((value[0], rank))
        else:
            self._needed.add((value[0], owner))
            self._edges.add(Edge(value, owner, rank))

    def _reach(self) -> None:
        """Go from what is wanted to all that it needs; a node comes behind what it needs, so one pass will do."""
        for number in range(len(self._nodes) - 1, -1, -1):
            for rank in range(self._ranks):
                if (number, rank) in self._needed:
                    for value in self._nodes[number].inputs:
                        self._need(value, rank)
                    for before in self._nodes[number].waits:
                        if self._owners[before] in (EVERYWHERE, rank):
                            self._needed.add((before, rank))

    def _stages(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Say when each node runs on a rank: after how many changes of rank or of phase, and in which phase.

        What needs no argument, such as the value of a variable, could run at once. It waits for whoever needs it first,
        so that no segment is made of odds and ends.
        """
        stages: dict[tuple[int, int], tuple[int, str]] = {}
        users: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        idle: list[tuple[int, int]] = []
        backward: list[bool] = []
        for number, node in enumerate(self._nodes):
            backward.append(node.backward or any(backward[before] for before, _ in node.inputs))
            phase = BACKWARD if backward[number] else FORWARD
            for rank in self._ranks_of(number):
                here = number, rank
                stage = 0
                for at in self._before(number, rank):
                    if at in stages:
                        stage = max(stage, stages[at][0] + (at[1] != rank or stages[at][1] != phase))
                    else:
                        users[at].append(here)
                if self._is_idle(number, rank, stages):
                    idle.append(here)
                else:
                    stages[here] = stage, phase
        for here in reversed(idle):
            # For another rank it is made before: two ranks whose segments of one stage need each other would both wait.
            needed = [(stages[user][0] - (user[1] != here[1]), stages[user][1]) for user in users[here]]
            # What only a result needs is made in the end.
            stages[here] = min(needed, key=_when, default=(len(self._nodes), BACKWARD))
        return stages

    def _ranks_of(self, number: int) -> list[int]:
        return [rank for rank in range(self._ranks) if (number, rank) in self._needed]

    def _before(self, number: int, rank: int) -> Iterable[tuple[int, int]]:
        """Yield what a node needs on a rank, where it runs; what is given, and constants, are always there."""
        node = self._nodes[number]
        for before, _ in node.inputs:
            if not self._nodes[before].constant:
                owner = self._owners[before]
                yield before, rank if owner == EVERYWHERE else owner
        for before in node.waits:
            if (before, rank) in self._needed and not self._nodes[before].constant:
                yield before, rank

    def _is_idle(self, number: int, rank: int, stages: dict[tuple[int, int], tuple[int, str]]) -> bool:
        node = self._nodes[number]
        if node.effect or any(at in stages for at in self._before(number, rank)):
            return False
        if number not in self._fed:
            return True
        # Of a backward pass there is nothing to gain by being early.
        return node.backward

    def _segments(
        self,
        rank: int,
        stages: dict[tuple[int, int], tuple[int, str]],
        numbered: dict[Edge, int],
        results: Sequence[Output],
    ) -> list[Segment]:
        by_stage: dict[tuple[int, str], Segment] = {}
        for number, node in enumerate(self._nodes):
            if (number, rank) in self._needed and not node.constant:
                stage, phase = stages[number, rank]
                by_stage.setdefault((stage, phase), Segment(phase)).nodes.append(number)
        arrives = {edge.value: number for edge, number in numbered.items() if edge.target == rank}
        leaves = {number: edge.value for edge, number in numbered.items() if edge.source == rank}
        awaited = {edge.value[0] for edge in numbered if edge.source == rank and self._computes_with(edge)}
        segments = self._merged([by_stage[key] for key in sorted(by_stage, key=_when)], arrives, awaited)
        home = {number: segment for segment in segments for number in segment.nodes}
        for segment in segments:
            self._connect(segment, home, arrives)
        received: set[int] = set()
        for segment in segments:
            # What has come stays until its last use.
            segment.receives = sorted(set(segment.receives) - received)
            received.update(segment.receives)
        self._keep_order(segments)
        for number, value in sorted(leaves.items()):
            home[value[0]].sends.append(number)
            _add(home[value[0]].gives, value)
        for value in results:
            if value[0] in home:
                _add(home[value[0]].gives, value)
        return segments

    def _computes_with(self, edge: Edge) -> bool:
        """Say whether an edge's target computes with what it gets, and does not only return it."""
        return any(
            (number, edge.target) in self._needed and edge.value in node.inputs
            for number, node in enumerate(self._nodes)
        )

    def _merged(
        self, segments: Sequence[Segment], arrives: Collection[Output], awaited: Collection[int]
    ) -> list[Segment]:
        """Join a segment that waits for nothing to the one before it, where nobody waits for what that one makes."""
        found: list[Segment] = []
        here: set[Output] = set()
        for segment in segments:
            needed = {value for number in segment.nodes for value in self._nodes[number].inputs if value in arrives}
            waits = not needed <= here
            here |= needed
            before = found[-1] if found else None
            if before is None or waits or {*awaited} & {*before.nodes} or not self._follows(before, segment):
                found.append(segment)
            else:
                before.nodes = sorted([*before.nodes, *segment.nodes])
        return found

    def _follows(self, before: Segment, segment: Segment) -> bool:
        """Say whether the schedule lets a segment run right after another, when both can."""
        return before.phase == segment.phase or (self._backward_at_once and before.phase == FORWARD)

    def _keep_order(self, segments: Sequence[Segment]) -> None:
        """Let microbatches come to state that changes in the order of their numbers, as in one process.

        A backward pass changes none, and a schedule may put all forward segments before it.
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
        for here, segment in enumerate(segments):
            segment.behind = here
            for later in range(here + 1, len(segments)):
                shared = changed[later] & touched[here] or touched[later] & changed[here]
                if shared and segments[later].phase == segment.phase == FORWARD:
                    segment.behind = later

    def _connect(self, segment: Segment, home: dict[int, Segment], arrives: dict[Output, int]) -> None:
        """Fill in the constants that a segment repeats, what it takes, and who gives that."""
        constants: set[int] = set()
        waiting = list(segment.nodes)
        while waiting:
            for value in self._nodes[waiting.pop()].inputs:
                before = value[0]
                if self._nodes[before].given:
                    _add(segment.takes, value)
                elif self._nodes[before].constant:
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


def _when(stage: tuple[int, str]) -> tuple[int, bool]:
    """Sort stages in the order in which they run: of one number, the forward one comes first."""
    return stage[0], stage[1] == BACKWARD


def _add(values: list[Output], value: Output) -> None:
    if value not in values:
        values.append(value)
