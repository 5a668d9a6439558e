"""What a microbatch did, kept as a list that is the same on every rank, and replayed backwards for the gradients.

    Segment   calls on one rank with no other rank's between them: one autograd graph there, of several `Run`s
    Move      a value's data went from its owner to another rank

Backward walks the list in reverse. A segment whose outputs have gradients runs its own autograd graph, on the rank that
ran it, down to its inputs; a move sends the gradient back the way the value came. Nothing waits inside autograd, and as
the list is the same everywhere each rank knows which messages to expect. The list keeps no data of a value, except what
another rank or segment has used: the rest is kept, or not, by autograd, as without partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.run_token import Turn
from herringbone_parallel.torch.model_parallel.runtime.transport import Purpose

if TYPE_CHECKING:
    from herringbone_parallel.torch.model_parallel.runtime.mailbox import Post


class Flow:
    """Where the gradients of one value come together on a rank.

    `root` is the tensor in its maker's autograd graph, on the owner, once something outside that graph has used it: the
    gradient goes on from there. `segment` is the entry that made the value, None for a parameter. The gradient of a
    `spent` one was asked for before, and its graph is gone.
    """

    __slots__ = ("gradient", "owner", "root", "segment", "serial", "spent")

    def __init__(self, owner: int, serial: int, segment: Segment | None) -> None:
        self.owner = owner
        self.serial = serial
        self.segment = segment
        self.root: torch.Tensor | None = None
        self.gradient: torch.Tensor | None = None
        self.spent = False

    def add(self, gradient: torch.Tensor | None) -> None:
        if gradient is None:
            return
        if isinstance(self.root, torch.nn.Parameter):
            # As autograd does it, so that hooks on the gradient hear of it.
            with torch._C.DisableTorchFunctionSubclass():
                torch.autograd.backward(self.root, gradient)
        else:
            self.gradient = gradient if self.gradient is None else self.gradient + gradient


@dataclass(slots=True, eq=False)
class Run:
    """One call: the flows it used and made. `turn` is set on its rank when it adds to gradients of parameters."""

    inputs: Sequence[Flow]
    outputs: Sequence[Flow]
    turn: Turn | None = None


class Entrance(NamedTuple):
    """How a value enters a segment's graph: the calls use `tensor`, its gradient is found at `leaf`."""

    flow: Flow
    leaf: torch.Tensor
    tensor: torch.Tensor


@dataclass(slots=True, eq=False)
class Segment:
    """Calls on `rank`; there, `entrances` are the inputs from outside, by serial."""

    rank: int
    runs: list[Run] = field(default_factory=list)
    entrances: dict[int, Entrance] = field(default_factory=dict)


@dataclass(slots=True)
class Move:
    """A value went to `target` too. `turn` is set on the owner of a parameter, whose gradient comes back."""

    flow: Flow
    target: int
    turn: Turn | None = None


class Tape:
    """The entries of one microbatch, in the order of its Python.

    With a `deferral`, it gets what is to be done for the gradients of parameters.
    """

    def __init__(self, deferral: Deferral | None = None) -> None:
        self._deferral = deferral
        self._entries: list[Segment | Move] = []
        # The newest segment: a call on its rank joins it.
        self._open: Segment | None = None

    def segment(self, rank: int) -> Segment:
        """Return the segment that a call on this rank belongs to; `add` puts it on the tape."""
        if self._open is not None and self._open.rank == rank:
            return self._open
        return Segment(rank)

    def add(self, segment: Segment, run: Run) -> None:
        segment.runs.append(run)
        if segment is not self._open:
            self._entries.append(segment)
            self._open = segment

    def move(self, move: Move) -> None:
        if self._open is not None and self._open.rank == move.target:
            # The value is older than the segment that it goes into, or it would not come from another rank.
            self._entries.insert(self._entries.index(self._open), move)
        else:
            self._entries.append(move)

    def backward(self, seeds: Sequence[tuple[Flow, torch.Tensor | None]], post: Post, *, retain: bool) -> None:
        """Propagate the seeds' gradients to all parameters this rank owns.

        A seed's tensor is its gradient on the rank that owns the value, None elsewhere. What the gradients flowed
        through is used up, unless `retain`. Raises `ParallelError` for a gradient through what was used up before.
        """
        needed = self._needed([flow for flow, _ in seeds])
        for flow, gradient in seeds:
            flow.add(gradient)
        entries, self._entries, self._open = self._entries, [], None
        kept: list[Segment | Move] = []
        while entries:
            entry = entries.pop()
            if isinstance(entry, Move):
                if entry.flow in needed:
                    _move_backward(entry, post, self._deferral)
                if retain or entry.flow not in needed:
                    kept.append(entry)
                continue
            runs = [run for run in entry.runs if not needed.isdisjoint(run.outputs)]
            others = [] if len(runs) == len(entry.runs) else [run for run in entry.runs if run not in runs]
            if runs and entry.rank == post.rank:
                turns = [run.turn for run in runs if run.turn is not None]
                for turn in turns:
                    post.await_turn(turn)
                _run_backward(entry, runs, retain, self._deferral)
                for turn in turns:
                    post.pass_turn(turn)
            if not retain:
                for run in runs:
                    _spend(run)
                entry.runs = others
            if entry.runs:
                kept.append(entry)
        self._entries = kept[::-1]

    def _needed(self, seeds: Sequence[Flow]) -> set[Flow]:
        """Return the flows that a gradient goes through: the same on every rank."""
        needed = set(seeds)
        for entry in reversed(self._entries):
            if isinstance(entry, Segment):
                for run in reversed(entry.runs):
                    if not needed.isdisjoint(run.outputs):
                        needed.update(run.inputs)
        if any(flow.spent for flow in needed):
            raise ParallelError(
                "a second backward() through the same calls, whose graph the first has used up; call the first as"
                " model.backward(loss, retain_graph=True)"
            )
        return needed


def _spend(run: Run) -> None:
    for flow in run.outputs:
        flow.spent = True
        flow.root = flow.gradient = None


def _run_backward(segment: Segment, runs: Sequence[Run], retain: bool, deferral: Deferral | None) -> None:
    roots, gradients = [], []
    for run in runs:
        for flow in run.outputs:
            if flow.gradient is not None:
                assert flow.root is not None
                roots.append(flow.root)
                gradients.append(flow.gradient)
                flow.gradient = None
    if roots and deferral is not None and not retain:
        entrances = list(segment.entrances.values())
        found = deferral.backward(roots, gradients, [entrance.leaf for entrance in entrances])
        for entrance, gradient in zip(entrances, found, strict=True):
            entrance.flow.add(gradient)
    elif roots:
        torch.autograd.backward(roots, gradients, retain_graph=retain)
        for entrance in segment.entrances.values():
            entrance.flow.add(entrance.leaf.grad)
            entrance.leaf.grad = None


def _move_backward(move: Move, post: Post, deferral: Deferral | None) -> None:
    flow = move.flow
    if post.rank == move.target:
        if flow.gradient is None:
            post.send_object(flow.owner, flow.serial, Purpose.GRADIENT, None)
        else:
            post.send_tensor(flow.owner, flow.serial, Purpose.GRADIENT, flow.gradient)
        flow.gradient = None
    elif post.rank == flow.owner:
        gradient = post.wait(flow.serial, Purpose.GRADIENT, source=move.target)
        if deferral is not None and move.turn is not None:
            deferral.add(partial(flow.add, gradient))
            return
        if move.turn is not None:
            post.await_turn(move.turn)
        flow.add(gradient)
        if move.turn is not None:
            post.pass_turn(move.turn)
