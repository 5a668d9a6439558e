"""`zero_bubble`: a backward in two parts, the gradients of inputs at once, those of parameters when nobody waits.

The part of an autograd graph that leads to parameters and to nothing else is cut off (`w -> TBackward` below); a cut is
where it joins the rest. The first part runs the graph down to the inputs, past the cuts, and keeps the gradients that
arrive there. The second runs each cut-off part from its cut. So no node runs twice, but one whose forward needs both.

    x ---------> AddmmBackward ---------> ReluBackward -> ... -> root
    w -> TBackward --^        ^ the cut: the gradient of this output is kept

Where no input needs a gradient, as on the first rank, the whole graph leads to parameters, and all of it is put off.
A parameter with several cuts is put off with a walk of its own through all of the graph.
Source of the idea: Qi et al. 2023, arXiv 2401.10241; of the cut: public documentation of `torch.autograd.graph`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge


class Cut(NamedTuple):
    """A node with the parameters behind it that nothing else leads to, and the numbers of its outputs in use."""

    node: Any
    outputs: tuple[int, ...]
    parameters: tuple[torch.Tensor, ...]


class Deferral:
    """What one microbatch has put off; `run` does it, in the order in which it was put off."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._actions)

    def add(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def run(self) -> None:
        actions, self._actions = self._actions[::-1], []
        while actions:
            # Popped, so that what it holds is let go at once.
            actions.pop()()

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the inputs, leaves of the graph, and put off those of the parameters."""
        cuts = cuts_of(roots, inputs)
        uses = Counter(id(parameter) for cut in cuts for parameter in cut.parameters)
        several = {id(p): p for cut in cuts for p in cut.parameters if uses[id(p)] > 1}
        edges = [GradientEdge(cut.node, output) for cut in cuts for output in cut.outputs]
        wanted: list[Any] = [*inputs, *edges]
        found: Sequence[torch.Tensor | None] = ()
        if wanted:
            found = torch.autograd.grad(roots, wanted, gradients, retain_graph=bool(cuts), allow_unused=True)
        if several:
            self.add(partial(_accumulate, roots, gradients, tuple(several.values()), keep=True))
        arrived = iter(found[len(inputs) :])
        for cut in cuts:
            edges_and_gradients = [(GradientEdge(cut.node, output), next(arrived)) for output in cut.outputs]
            mine = [(edge, gradient) for edge, gradient in edges_and_gradients if gradient is not None]
            own = tuple(parameter for parameter in cut.parameters if uses[id(parameter)] == 1)
            if mine and own:
                self.add(partial(_accumulate, [e for e, _ in mine], [g for _, g in mine], own, keep=False))
        return found[: len(inputs)]


def cuts_of(roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Cut]:
    """Return the cuts of the graph behind the roots, those nearest to the roots first."""
    walk = _Walk({id(leaf) for leaf in inputs})
    for root in roots:
        if root.grad_fn is not None:
            walk.visit(root.grad_fn, root.output_nr)
    return walk.cuts({root.grad_fn for root in roots if root.grad_fn is not None})


class _Walk:
    """Goes through a graph once; each node is done after those that it leads to."""

    def __init__(self, inputs: set[int]) -> None:
        self._inputs = inputs
        self._done: dict[Any, bool] = {}
        self._outputs: dict[Any, set[int]] = {}

    def visit(self, node: Any, output: int) -> None:
        self._outputs.setdefault(node, set()).add(output)
        stack = [(node, False)]
        while stack:
            node, seen = stack.pop()
            if node in self._done:
                continue
            children = [(child, number) for child, number in node.next_functions if child is not None]
            if seen:
                self._done[node] = self._leads_to_parameters_alone(node, children)
                continue
            stack.append((node, True))
            for child, number in children:
                self._outputs.setdefault(child, set()).add(number)
                stack.append((child, False))

    def _leads_to_parameters_alone(self, node: Any, children: Sequence[tuple[Any, int]]) -> bool:
        if hasattr(node, "variable"):
            return id(node.variable) not in self._inputs
        return all(self._done[child] for child, _ in children)

    def cuts(self, roots: set[Any]) -> list[Cut]:
        found = []
        for node, parameters_alone in reversed(self._done.items()):
            if parameters_alone:
                behind = [node] if node in roots else []
            else:
                behind = [child for child, _ in node.next_functions if child is not None and self._done[child]]
            if behind:
                found.append(Cut(node, tuple(sorted(self._outputs[node])), self._parameters_behind(behind)))
        return found

    @staticmethod
    def _parameters_behind(nodes: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        found: dict[int, torch.Tensor] = {}
        seen = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found[id(node.variable)] = node.variable
            stack += [child for child, _ in node.next_functions if child is not None]
        return tuple(found.values())


def _accumulate(
    starts: Sequence[Any], gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], *, keep: bool
) -> None:
    torch.autograd.backward(starts, gradients, inputs=parameters, retain_graph=keep)


def is_supported() -> bool:
    """Say whether this torch can start a backward inside a graph."""
    leaf = torch.ones(1, requires_grad=True)
    root = leaf * 2
    assert root.grad_fn is not None
    try:
        torch.autograd.backward([GradientEdge(root.grad_fn, 0)], [torch.ones(1)], inputs=[leaf])
    except (TypeError, AttributeError, RuntimeError):
        return False
    return True
