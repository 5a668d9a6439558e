"""Send a checksum of this rank's parameters after every n steps; the job's coordinator compares those of replicas.

The sum of the bits of all parameters, as integers, changes with every bit that one of them has wrong.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from herringbone_contract.constants import HostVariable
from herringbone_contract.events.emit import emit
from herringbone_contract.events.steps import Owner
from herringbone_parallel.torch.step_hook import is_counting

# Integers of the same size as a number of a parameter.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def watch() -> None:
    """Send checksums from now on: after the first step, and then every n, as the job's variable says."""
    every, owner, count = int(os.environ[HostVariable.CHECK_REPLICAS]), Owner(), 0

    def note(optimizer: Optimizer, *_: Any) -> None:
        nonlocal count
        if torch.compiler.is_compiling() or not is_counting() or not owner.takes(optimizer):
            return
        count += 1
        if count == 1 or count % every == 0:
            emit("checksum", step=count, value=str(checksum(optimizer)))

    register_optimizer_step_post_hook(note)


def checksum(optimizer: Optimizer) -> int:
    """Return the checksum of the parameters that this rank has; the device computes it, and is waited for once.

    >>> weights = torch.nn.Parameter(torch.ones(3))
    >>> checksum(torch.optim.SGD([weights], 0.1)) == 3 * 0x3F800000
    True
    """
    sums: dict[torch.device, Tensor] = {}
    for place, parameter in enumerate(each for group in optimizer.param_groups for each in group["params"]):
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if not isinstance(local, Tensor) or local.is_meta or not local.numel():
            continue
        flat = torch.view_as_real(local.detach()) if local.is_complex() else local.detach()
        bits = flat.contiguous().reshape(-1).view(_INTEGERS[flat.element_size()])
        # A different weight for each parameter, since two of them may have been exchanged.
        own = bits.sum(dtype=torch.int64) * (2 * place + 1)
        sums[own.device] = sums[own.device] + own if own.device in sums else own
    return sum(int(each) for each in sums.values())
