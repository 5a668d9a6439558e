"""The tape of a microbatch: a list of what it did, the same on every rank, walked backwards for the gradients.

    Segment   calls on one rank with no call of another rank between them: one autograd graph of several `Run`s
    Move      a value's data went from its owner to another rank

    forward     rank 0: [ Segment a ] --Move x--> rank 1: [ Segment b ] --Move y--> rank 0: [ Segment c ]
    backward    rank 0: [ Segment a ] <--dx------ rank 1: [ Segment b ] <--dy------ rank 0: [ Segment c ]

A segment whose outputs have gradients runs its autograd graph down to its inputs, on the rank that built the graph. A
move sends the gradient back the way the value came. No thread waits inside autograd. Because the list is the same
everywhere, each rank knows which messages to expect. The list references the data of a value only if another rank or
segment has used it; autograd keeps or frees all other data, as without partitions.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.runtime.deferral import Deferral
from herringbone_parallel.torch.model_parallel.runtime.mailbox import Mailbox
from herringbone_parallel.torch.model_parallel.runtime.messages import Purpose
from herringbone_parallel.torch.model_parallel.runtime.run_token import Ticket


class Flow:
    """The sum of the gradients of one value on this rank.

    root      on the owner, the tensor in its autograd graph, from where the gradient goes on; None until something
              outside that graph uses the value
    segment   the entry that made the value; None for a parameter
    reached   True once a backward has gone through the value; the same on every rank
    spent     True once a backward has used up the value's graph
    value     a weak reference to the value: once it is gone, user code cannot ask for the gradient
    """

    __slots__ = ("gradient", "owner", "reached", "root", "segment", "serial", "spent", "value")

    def __init__(self, value: object, owner: int, serial: int, segment: Segment | None) -> None:
        self.value = weakref.ref(value)
        self.owner = owner
        self.serial = serial
        self.segment = segment
        self.root: torch.Tensor | None = None
        self.gradient: torch.Tensor | None = None
        self.reached = False
        self.spent = False

    def add(self, gradient: torch.Tensor | None) -> None:
        """Add a gradient to the sum; None adds nothing."""
        if gradient is None:
            return
        if isinstance(self.root, torch.nn.Parameter):
            # By autograd and not by `+=`, so that hooks on the gradient run: the reducer counts them.
            with torch._C.DisableTorchFunctionSubclass():
                torch.autograd.backward(self.root, gradient)
        else:
            # A new tensor: autograd and other ranks' messages may still reference the old one.
            self.gradient = gradient if self.gradient is None else self.gradient + gradient


@dataclass(slots=True, eq=False)
class Run:
    """One call: the flows it used and made.

    `ticket` is set on the rank that ran the call, if its backward adds to gradients of parameters.
    """

    inputs: Sequence[Flow]
    outputs: Sequence[Flow]
    ticket: Ticket | None = None


class Entrance(NamedTuple):
    """An input of a segment's graph: the calls use `tensor`, and the backward leaves its gradient at `leaf`."""

    flow: Flow
    leaf: torch.Tensor
    tensor: torch.Tensor


@dataclass(slots=True, eq=False)
class Segment:
    """Successive calls on `rank`; on that rank, `entrances` are the inputs from outside by their value's serial.

    `hidden` are the flows and leaves of forgotten entrances. A module may have kept a tensor of a forgotten call, and
    used it in a later one: autograd then holds the leaf, and brings a gradient there.
    """

    rank: int
    runs: list[Run] = field(default_factory=list)
    entrances: dict[int, Entrance] = field(default_factory=dict)
    hidden: list[tuple[Flow, weakref.ref[torch.Tensor]]] = field(default_factory=list)

    def forget(self, others: list[Run]) -> None:
        """Keep only `others` of the calls, and the entrances that they use."""
        used = {flow.serial for run in others for flow in run.inputs}
        unused = [entrance for serial, entrance in self.entrances.items() if serial not in used]
        self.hidden += [(entrance.flow, weakref.ref(entrance.leaf)) for entrance in unused]
        self.entrances = {serial: entrance for serial, entrance in self.entrances.items() if serial in used}
        self.runs = others

    def leaves(self) -> list[tuple[Flow, torch.Tensor]]:
        """Return the leaves at which the segment's graph ends, and the flows of their gradients."""
        hidden = [(flow, leaf()) for flow, leaf in self.hidden]
        entrances = [(entrance.flow, entrance.leaf) for entrance in self.entrances.values()]
        return entrances + [(flow, leaf) for flow, leaf in hidden if leaf is not None]


@dataclass(slots=True)
class Move:
    """The transfer of a value to `target`. For a parameter, `ticket` orders the sums of the returning gradients."""

    flow: Flow
    target: int
    ticket: Ticket | None = None


class StartGradient(NamedTuple):
    """A value that a backward starts from; `gradient` is None except on the rank that owns the value."""

    flow: Flow
    gradient: torch.Tensor | None


class Tape:
    """The entries of one microbatch, in the order of its Python code.

        segment = tape.segment(rank)
        tape.add(segment, run)              # after each call
        tape.move(Move(flow, target))       # before a call that needs the value
        tape.backward([StartGradient(flow, gradient)], mailbox, retain=False)

    Only the thread of the microbatch uses it. With a `deferral`, backward puts off the gradients of parameters.
    """

    def __init__(self, deferral: Deferral | None = None) -> None:
        self._deferral = deferral
        self._entries: list[Segment | Move] = []
        # The newest segment: the next call on its rank joins it. One autograd run for many calls is faster, and keeps
        # tensors between the calls out of the tape.
        self._open: Segment | None = None

    @property
    def defers(self) -> bool:
        """Say whether backward puts off the gradients of parameters."""
        return self._deferral is not None

    def segment(self, rank: int) -> Segment:
        """Return the segment that a call on this rank belongs to; `add` appends it to the tape."""
        if self._open is not None and self._open.rank == rank:
            return self._open
        # Not on the tape yet: a call without gradients leaves no entry.
        return Segment(rank)

    def add(self, segment: Segment, run: Run) -> None:
        """Append a call that has returned."""
        segment.runs.append(run)
        if segment is not self._open:
            self._entries.append(segment)
            self._open = segment

    def move(self, move: Move) -> None:
        """Append a transfer, before the segment that uses the value."""
        if self._open is not None and self._open.rank == move.target:
            # The open segment goes on, and backward must return this gradient after it has run the whole segment. The
            # value is older than the segment: a call on another rank would have closed it.
            self._entries.insert(self._entries.index(self._open), move)
        else:
            self._entries.append(move)

    def forget_unreachable(self) -> None:
        """Forget the calls whose results nobody can ask for: user code has dropped them, and all that depends on them.

        Their segments would keep received inputs for a backward that never comes. A rank may find fewer of them than
        another one, if references stay longer there: none of them can be part of a backward on any rank.
        """
        reachable: set[Flow] = set()
        kept: list[Segment | Move] = []
        # Backwards: a value is used after it was made.
        for entry in reversed(self._entries):
            if isinstance(entry, Move):
                kept.append(entry)
                continue
            runs = []
            for run in reversed(entry.runs):
                if any(_is_alive(flow, reachable) for flow in run.outputs):
                    reachable.update(run.inputs)
                    runs.append(run)
            if len(runs) < len(entry.runs):
                entry.forget(runs[::-1])
            if runs:
                kept.append(entry)
        # Only now: a use before the move makes a value reachable, too. A rank that still has the value keeps its move,
        # and the other rank of the move must keep it as well, because one waits for what the other sends.
        self._entries = [e for e in reversed(kept) if isinstance(e, Segment) or _is_alive(e.flow, reachable)]
        self._open = None

    def end(self) -> None:
        """Forget everything: the user's function has returned, and asks for no more gradients."""
        for entry in self._entries:
            if isinstance(entry, Segment):
                entry.forget([])
        self._entries, self._open = [], None

    def backward(self, starts: Sequence[StartGradient], mailbox: Mailbox, *, retain: bool) -> None:
        """Propagate the gradients to all parameters that this rank owns.

        The calls that the gradients flowed through are used up, unless `retain`. Raises `ParallelError` for a gradient
        through calls that were used up before.
        """
        # Computed from the list alone, so that all ranks expect the same messages, with or without a gradient in them.
        needed = self._needed([start.flow for start in starts])
        for flow in needed:
            flow.reached = True
        for start in starts:
            start.flow.add(start.gradient)
        entries, self._entries, self._open = self._entries, [], None
        kept: list[Segment | Move] = []
        while entries:
            # Popped, so that each segment's graph and inputs are freed as soon as its backward has run.
            entry = entries.pop()
            if isinstance(entry, Move):
                if entry.flow in needed:
                    _move_backward(entry, mailbox, self._deferral)
                if retain or entry.flow not in needed:
                    kept.append(entry)
                continue
            runs = [run for run in entry.runs if not needed.isdisjoint(run.outputs)]
            others = [] if len(runs) == len(entry.runs) else [run for run in entry.runs if run not in runs]
            if runs and entry.rank == mailbox.rank:
                # Autograd adds to the gradients of all parameters of the segment in one run. So this microbatch waits
                # until the previous one has added to each of them: the order of the sums is then always the same.
                tickets = [run.ticket for run in runs if run.ticket is not None]
                for ticket in tickets:
                    mailbox.await_ticket(ticket)
                _run_backward(entry, runs, retain, self._deferral)
                for ticket in tickets:
                    mailbox.pass_ticket(ticket)
            if not retain:
                for run in runs:
                    _spend(run)
                entry.forget(others)
            if entry.runs:
                kept.append(entry)
        self._entries = kept[::-1]

    def _needed(self, starts: Sequence[Flow]) -> set[Flow]:
        """Return the flows that a gradient goes through: the same on every rank."""
        # Backwards, so that the outputs of a run are complete before its inputs are looked at.
        needed = set(starts)
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


def _is_alive(flow: Flow, reachable: set[Flow]) -> bool:
    return flow in reachable or flow.value() is not None


def _spend(run: Run) -> None:
    for flow in run.outputs:
        flow.spent = True
        # The reference to the root keeps the whole autograd graph of the segment alive.
        flow.root = flow.gradient = None


def _run_backward(segment: Segment, runs: Sequence[Run], retain: bool, deferral: Deferral | None) -> None:
    roots, gradients = [], []
    for run in runs:
        for flow in run.outputs:
            if flow.gradient is not None:
                assert flow.root is not None
                roots.append(flow.root)
                gradients.append(flow.gradient)
                # Handed over to autograd; a later backward starts from zero.
                flow.gradient = None
    if roots and deferral is not None and not retain:
        leaves = segment.leaves()
        input_gradients = deferral.backward(roots, gradients, [leaf for _, leaf in leaves])
        for (flow, _), gradient in zip(leaves, input_gradients, strict=True):
            flow.add(gradient)
    elif roots:
        # Before the backward, which frees the graph, and with it the leaves of forgotten entrances.
        leaves = segment.leaves()
        torch.autograd.backward(roots, gradients, retain_graph=retain)
        for flow, leaf in leaves:
            flow.add(leaf.grad)
            # With `retain` another backward comes here, which must not add this gradient again.
            leaf.grad = None


def _move_backward(move: Move, mailbox: Mailbox, deferral: Deferral | None) -> None:
    """Send a gradient from the rank that used the value to the rank that owns it; other ranks do nothing."""
    flow = move.flow
    if mailbox.rank == move.target:
        if flow.gradient is None:
            # The owner waits in any case: it cannot know whether this rank's calls used the value for the result.
            mailbox.send_object(flow.owner, flow.serial, Purpose.GRADIENT, None)
        else:
            mailbox.send_tensor(flow.owner, flow.serial, Purpose.GRADIENT, flow.gradient)
        flow.gradient = None
    elif mailbox.rank == flow.owner:
        gradient = mailbox.wait(flow.serial, Purpose.GRADIENT, source=move.target)
        if deferral is not None and move.ticket is not None:
            # The gradient of a parameter: nobody waits for it, and `enter_weight` keeps the order of the sums.
            deferral.add(partial(flow.add, gradient))
            return
        if move.ticket is not None:
            mailbox.await_ticket(move.ticket)
        flow.add(gradient)
        if move.ticket is not None:
            mailbox.pass_ticket(move.ticket)


def start_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return the gradient that a backward starts from. Raises `ParallelError` where there is no default."""
    if gradient is not None:
        return gradient
    if tensor.numel() != 1:
        raise ParallelError(
            f"backward() of a tensor of shape {list(tensor.shape)} needs a gradient of that shape;"
            " only a scalar has a default gradient, 1"
        )
    return torch.ones_like(tensor)
