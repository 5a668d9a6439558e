"""A case of the equality matrix: a model, its inputs, and one training step of a user's script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BATCH, WIDTH, CLASSES, VOCABULARY, TOKENS = 8, 6, 4, 11, 3

# (tensors, gradients) -> None: `model.backward` on a rank, autograd's backward in one process.
Backward = Callable[..., None]
Step = Callable[[Callable[..., Any], Backward, torch.Tensor, torch.Tensor], torch.Tensor]


def classify(model: Callable[..., Any], backward: Backward, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(inputs), target)
    backward(loss)
    return loss


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs [BATCH, WIDTH] and classes [BATCH]."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs [BATCH, TOKENS, WIDTH] and classes [BATCH]."""
    generator = torch.Generator().manual_seed(12)
    return torch.randn(BATCH, TOKENS, WIDTH, generator=generator), vectors()[1]


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs [BATCH, 1, 8, 8] and classes [BATCH]."""
    generator = torch.Generator().manual_seed(13)
    return torch.randn(BATCH, 1, 8, 8, generator=generator), vectors()[1]


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [BATCH, TOKENS] and, in the same shape, the token after each."""
    generator = torch.Generator().manual_seed(14)
    whole = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
    return whole[:, :-1], whole[:, 1:]


@dataclass(frozen=True)
class Case:
    """One case. `prepare` is called on the module on ranks only, for features of the library that change no number."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, torch.Tensor]] = vectors
    step: Step = classify
    prepare: Callable[[nn.Module], None] = lambda module: None

    def build(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
        """Return the module, its input and its target: the same numbers at every call."""
        torch.manual_seed(5)
        module = self.module().to(dtype)
        inputs, target = self.inputs()
        return module, inputs.to(dtype) if inputs.is_floating_point() else inputs, target


def atoms(module: nn.Module) -> list[list[str]]:
    """Return groups of modules that can be on different partitions, by dotted paths, in the order of definition.

    Modules that share a parameter are one group; modules without parameters or buffers are not listed.
    """
    groups: list[tuple[set[int], list[str]]] = []
    for path, inner in module.named_modules():
        own = {id(tensor) for tensor in (*inner._parameters.values(), *inner._buffers.values()) if tensor is not None}
        if not own:
            continue
        shared = next((group for group in groups if group[0] & own), None)
        if shared is None:
            groups.append((own, [path]))
        else:
            shared[0].update(own)
            shared[1].append(path)
    return [paths for _, paths in groups]


def contiguous(count: int, partitions: int) -> Sequence[int]:
    """Return the partition of each of `count` atoms, in even runs.

    >>> contiguous(5, 2)
    [0, 0, 0, 1, 1]
    """
    return [index * partitions // count for index in range(count)]


def scattered(count: int, partitions: int) -> Sequence[int]:
    """Return the partition of each atom; neighbours are never together.

    >>> scattered(5, 2)
    [0, 1, 0, 1, 0]
    """
    return [index % partitions for index in range(count)]


SPLITS = {"contiguous": contiguous, "scattered": scattered}


def partition_by_path(module: nn.Module, partitions: int, split: str) -> dict[str, int]:
    """Return the partition of each module with parameters or buffers, by path."""
    groups = atoms(module)
    return {
        path: partition
        for paths, partition in zip(groups, SPLITS[split](len(groups), partitions), strict=True)
        for path in paths
    }
