"""`zero_bubble`: a backward in two parts. The gradients of inputs come first, because another rank waits for them.

The second part computes the gradients of parameters when the rank would otherwise wait. Some parts of an autograd
graph lead to parameters only (`w -> TBackward` below). A cut is the node where such a part joins the rest.

    [1] The first part runs the graph down to the inputs, past the cuts, and keeps the gradients that arrive there.
    [2] The second part runs each cut-off part from its cut.

So no node runs twice, except the cut itself, whose backward makes both kinds of gradients.

    x ---------> AddmmBackward ---------> ReluBackward -> ... -> root
    w -> TBackward --^        ^ the cut: the gradient of this output is kept

Where no input needs a gradient, as on the first rank, the whole graph leads to parameters, and all of it is put off.
A parameter behind several cuts is put off as a separate run through the whole graph.
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
    """A node of the graph behind which there are parameters, reached through this node's own branch only.

    `outputs` are the numbers of the node's outputs in use: gradients arrive there.
    """

    node: Any
    outputs: tuple[int, ...]
    parameters: tuple[torch.Tensor, ...]


class Deferral:
    """The work that one microbatch has put off.

    gradients = deferral.backward(roots, root_gradients, inputs)     # [1]
    deferral.run()                                                   # [2], in the same order
    """

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._actions)

    def add(self, action: Callable[[], None]) -> None:
        """Put an action off."""
        self._actions.append(action)

    def run(self) -> None:
        """Run all actions, in the order in which they were put off."""
        actions, self._actions = self._actions[::-1], []
        while actions:
            # Popped before it runs: the graph and the gradients it holds are freed at once, not after the last one.
            actions.pop()()

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """Return the gradients of the inputs, which are leaves of the graph; put off those of the parameters."""
        # A new walk for each segment and step: autograd builds a new graph in each forward.
        cuts = cuts_of(roots, inputs)
        uses = Counter(id(parameter) for cut in cuts for parameter in cut.parameters)
        # Reached from several cuts. One run from the roots adds up such a gradient as an ordinary backward does,
        # whatever nodes the cuts share.
        several = {id(p): p for cut in cuts for p in cut.parameters if uses[id(p)] > 1}
        edges = [GradientEdge(cut.node, output) for cut in cuts for output in cut.outputs]
        wanted: list[Any] = [*inputs, *edges]
        arrived: Sequence[torch.Tensor | None] = ()
        if wanted:
            # The graph is kept if the second part needs it.
            arrived = torch.autograd.grad(roots, wanted, gradients, retain_graph=bool(cuts), allow_unused=True)
        if several:
            self.add(partial(_accumulate, roots, gradients, tuple(several.values()), keep=True))
        at_cuts = iter(arrived[len(inputs) :])
        for cut in cuts:
            # An output that no gradient reached has None; its part of the graph then adds nothing.
            edges_and_gradients = [(GradientEdge(cut.node, output), next(at_cuts)) for output in cut.outputs]
            used = [(edge, gradient) for edge, gradient in edges_and_gradients if gradient is not None]
            parameters = tuple(parameter for parameter in cut.parameters if uses[id(parameter)] == 1)
            if used and parameters:
                self.add(partial(_accumulate, [e for e, _ in used], [g for _, g in used], parameters, keep=False))
        return arrived[: len(inputs)]


def cuts_of(roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[Cut]:
    """Return the cuts of the graph behind the roots, those nearest to the roots first."""
    walk = _Walk({id(leaf) for leaf in inputs})
    for root in roots:
        if root.grad_fn is not None:
            walk.visit(root.grad_fn, root.output_nr)
    return walk.cuts({root.grad_fn for root in roots if root.grad_fn is not None})


class _Walk:
    """Walks a graph once and classifies each node after the nodes that it leads to.

    The walk keeps its own stack: graphs of long sequences are deeper than Python's recursion limit.
    """

    def __init__(self, inputs: set[int]) -> None:
        # By identity of a leaf tensor: comparing tensors would compare their elements.
        self._inputs = inputs
        # By node, in the order of completion: True if the node leads to parameters only.
        self._only_parameters: dict[Any, bool] = {}
        self._outputs: dict[Any, set[int]] = {}

    def visit(self, node: Any, output: int) -> None:
        """Walk everything behind one output of a node."""
        self._outputs.setdefault(node, set()).add(output)
        stack = [(node, False)]
        while stack:
            node, children_done = stack.pop()
            if node in self._only_parameters:
                continue
            children = [(child, number) for child, number in node.next_functions if child is not None]
            if children_done:
                self._only_parameters[node] = self._leads_to_parameters_only(node, children)
                continue
            # Below its children on the stack, so the node is classified after all of them.
            stack.append((node, True))
            for child, number in children:
                self._outputs.setdefault(child, set()).add(number)
                stack.append((child, False))

    def _leads_to_parameters_only(self, node: Any, children: Sequence[tuple[Any, int]]) -> bool:
        # `AccumulateGrad`, the node of a leaf, is the only one with a `variable`.
        if hasattr(node, "variable"):
            return id(node.variable) not in self._inputs
        return all(self._only_parameters[child] for child, _ in children)

    def cuts(self, roots: set[Any]) -> list[Cut]:
        """Return the cuts, those nearest to the roots first."""
        cuts = []
        for node, only_parameters in reversed(self._only_parameters.items()):
            if only_parameters:
                # Nothing else needs this part of the graph, so it is put off from the root on.
                behind = [node] if node in roots else []
            else:
                children = [child for child, _ in node.next_functions if child is not None]
                behind = [child for child in children if self._only_parameters[child]]
            if behind:
                cuts.append(Cut(node, tuple(sorted(self._outputs[node])), self._parameters_behind(behind)))
        return cuts

    @staticmethod
    def _parameters_behind(nodes: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        parameters: dict[int, torch.Tensor] = {}
        seen = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                parameters[id(node.variable)] = node.variable
            stack += [child for child, _ in node.next_functions if child is not None]
        return tuple(parameters.values())


def _accumulate(
    starts: Sequence[Any], gradients: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], *, keep: bool
) -> None:
    torch.autograd.backward(starts, gradients, inputs=parameters, retain_graph=keep)


def is_supported() -> bool:
    """Say whether this torch can start a backward in the middle of a graph, as `zero_bubble` needs."""
    leaf = torch.ones(1, requires_grad=True)
    root = leaf * 2
    assert root.grad_fn is not None
    try:
        torch.autograd.backward([GradientEdge(root.grad_fn, 0)], [torch.ones(1)], inputs=[leaf])
    except (TypeError, AttributeError, RuntimeError):
        return False
    return True
