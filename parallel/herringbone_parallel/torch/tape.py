"""What a microbatch did, kept as a list that is the same on every rank, and replayed backwards for the gradients.

    Run    an operation or a module call, on one rank: inputs -> outputs, with a small autograd graph of its own there
    Move   a value's data went from its owner to another rank

Backward walks the list in reverse. A Run whose outputs have gradients runs its own autograd graph, on the rank that ran
it, down to its inputs; a Move sends the gradient back the way the value came. Each graph is walked once, nothing waits
inside autograd, and as the list is the same everywhere each rank knows which messages to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from herringbone_parallel.torch.baton import Turn
from herringbone_parallel.torch.transport import Purpose

if TYPE_CHECKING:
    from herringbone_parallel.torch.placed import Value
    from herringbone_parallel.torch.post import Post


@dataclass(slots=True)
class Run:
    """One call on `rank`. There, `leaves` stand for the inputs and `roots` for the outputs in the call's own graph.

    `turn` is set when the call adds to gradients of parameters: microbatches then do so in their order.
    """

    rank: int
    inputs: Sequence[Value]
    outputs: Sequence[Value] = ()
    leaves: Sequence[torch.Tensor | None] = ()
    roots: Sequence[torch.Tensor] = ()
    turn: Turn | None = None


@dataclass(slots=True)
class Move:
    """A value's data went to `target` too."""

    value: Value
    target: int


@dataclass(slots=True)
class Tape:
    """The entries of one microbatch, in the order of its Python."""

    entries: list[Run | Move] = field(default_factory=list)

    def add(self, entry: Run | Move) -> None:
        self.entries.append(entry)

    def backward(self, seeds: Sequence[tuple[Value, torch.Tensor | None]], post: Post) -> None:
        """Propagate the seeds' gradients to all parameters this rank owns.

        A seed's tensor is its gradient on the rank that owns the value, None elsewhere. The entries are used up.
        """
        needed = self._needed([value for value, _ in seeds])
        for value, gradient in seeds:
            if value.owner == post.rank:
                value.add_gradient(gradient)
        entries, self.entries = self.entries, []
        while entries:
            entry = entries.pop()
            if isinstance(entry, Run):
                if entry.rank == post.rank and any(value.serial in needed for value in entry.outputs):
                    with post.turn(entry.turn):
                        _run_backward(entry)
            elif entry.value.serial in needed:
                _move_backward(entry, post)

    def _needed(self, seeds: Sequence[Value]) -> set[int]:
        """Return the serials of the values that a gradient flows through: the same answer on every rank."""
        needed = {value.serial for value in seeds if value.spec.requires_grad}
        for entry in reversed(self.entries):
            if isinstance(entry, Run) and any(value.serial in needed for value in entry.outputs):
                needed.update(value.serial for value in entry.inputs if value.spec.requires_grad)
        return needed


def _run_backward(entry: Run) -> None:
    pairs = [
        (root, value.gradient)
        for root, value in zip(entry.roots, entry.outputs, strict=True)
        if value.gradient is not None and root.requires_grad
    ]
    if pairs:
        torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
    for value, leaf in zip(entry.inputs, entry.leaves, strict=True):
        if leaf is not None:
            value.add_gradient(leaf.grad)
            leaf.grad = None
    for value in entry.outputs:
        value.gradient = None


def _move_backward(entry: Move, post: Post) -> None:
    value = entry.value
    if post.rank == entry.target:
        gradient = value.gradient
        if gradient is None:
            assert value.local is not None
            gradient = torch.zeros_like(value.local)
        post.send_tensor(value.owner, value.serial, Purpose.GRADIENT, gradient)
        value.gradient = None
    elif post.rank == value.owner:
        value.add_gradient(post.wait(value.serial, Purpose.GRADIENT, source=entry.target))
