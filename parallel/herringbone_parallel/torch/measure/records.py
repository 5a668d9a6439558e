"""The entries that a recorder collects: modules, allocations, calls and steps of optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from herringbone_parallel.core.prediction.measurement import Phase


class Modules(list[nn.Module]):
    """The modules in the order in which they first ran. The references keep their identities from being used again."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}

    def number(self, module: nn.Module) -> int:
        """Return the module's index."""
        number = self._numbers.setdefault(id(module), len(self))
        if number == len(self):
            self.append(module)
        return number


@dataclass(slots=True)
class Allocation:
    """The memory of one storage. `born` and `freed` are moments, -1 where it is still held; `module` is a number."""

    bytes: int
    born: int
    module: int
    microbatch: int
    phase: Phase
    freed: int = -1
    is_input: bool = False
    # In a measurement for GPUs: whether it is in a GPU's memory.
    on_device: bool = False
    # The identity of the parameter whose gradient it was at an optimizer step.
    gradient: int | None = None
    # In an optimizer, the allocation from which this one was computed.
    parent: Allocation | None = None
    reference: Any = None


@dataclass(slots=True)
class Record:
    """One call: the operation's number, the module's, the phase and the microbatch.

    `owner` is the allocation whose owner counts as the module, or the identity of that parameter: calls of autograd's
    sums of gradients and of optimizers run in no module.
    """

    operation: int
    module: int
    phase: Phase
    microbatch: int
    owner: Allocation | int | None = None


@dataclass(slots=True)
class Step:
    """One optimizer step: the optimizer, and the moments of its begin and its end."""

    optimizer: torch.optim.Optimizer
    begin: int
    end: int
