"""Describes BERT-large and ResNet-50 for an all-reduce: the bytes of each gradient, and when it is final.

Sizes and the shares of the time come from `benchmarks.partition.shapes`, and so from the published architectures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.partition.shapes import BYTES_PER_PARAMETER, OPERATIONS_PER_SECOND, resnet50, transformer

from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.sums.simulate import Sum

GRADIENT_BYTES = 2  # fp16, as in both publications

# 32 sequences of 128 tokens on a V100, 65,536 in a batch on 2,048 of them; a V100 is assumed to sustain a third of its
# 125 TFLOP/s.
BERT_SEQUENCES, BERT_TOKENS, BERT_OPERATIONS_PER_SECOND = 32, 128, 40e12
# 40 images at 1,097 per second: 1.73 million per second on 2,048 V100 at 77 % are 1,097 on one (arXiv 1903.12650).
RESNET_SECONDS = 40 / 1097


@dataclass(frozen=True)
class Workload:
    """One step of a model on one GPU: a forward, then a backward, during which `gradients` become final."""

    name: str
    forward_s: float
    backward_s: float
    gradients: tuple[Sum, ...]

    @property
    def gradient_bytes(self) -> int:
        return sum(one.size for one in self.gradients)


def bert_large(speed: float = 1.0) -> Workload:
    """Return BERT-large's step on a GPU `speed` times as fast as a V100."""
    tree = transformer(layers=24, width=1024, vocabulary=30_522, tokens=BERT_TOKENS, batch=BERT_SEQUENCES)
    operations = math.fsum(node.seconds for node in tree.root.walk()) * OPERATIONS_PER_SECOND
    return _workload("BERT-large", tree, operations / BERT_OPERATIONS_PER_SECOND / speed)


def resnet_50(speed: float = 1.0) -> Workload:
    """Return ResNet-50's step on a GPU `speed` times as fast as a V100."""
    return _workload("ResNet-50", resnet50(), RESNET_SECONDS / speed)


def _workload(name: str, tree: CostTree, step_s: float) -> Workload:
    """Return a model's step; a gradient is final when the first module that uses its parameter ends its backward."""
    nodes = list(tree.root.walk())
    total = math.fsum(node.seconds for node in nodes)
    backward_s = step_s * 2 / 3
    passed, final = 0.0, {}
    for node in reversed(nodes):
        passed += node.seconds
        for parameter, size in node.parameters.items():
            # A shared parameter occurs again: its gradient is final at the last occurrence, so it moves to the end.
            final.pop(parameter, None)
            final[parameter] = Sum(size // BYTES_PER_PARAMETER * GRADIENT_BYTES, backward_s * min(1.0, passed / total))
    return Workload(name, step_s - backward_s, backward_s, tuple(final.values()))
