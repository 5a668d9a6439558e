"""Recompute the activations of each block in the backward pass, and keep the blocks' inputs in the host's memory.

torch's `checkpoint_wrapper` does the first. `LayerOffloading` does the second where the job asks for
`sm_activation_offloading`. AWS's scripts apply `apply_activation_checkpointing` and then `offload_wrapper` themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    OffloadWrapper,
    checkpoint_wrapper,
)

from herringbone_contract.errors import ParallelError


def checkpoint_blocks(model: nn.Module, blocks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Wrap each block in torch's `CheckpointWrapper`, in place, and return the wrappers under the blocks' names.

    A block that holds another one is not wrapped, because its activations would be recomputed twice.
    """
    wrapped = {}
    for name, block in blocks.items():
        if any(other.startswith(f"{name}.") for other in blocks):
            wrapped[name] = block
            continue
        if not isinstance(block, CheckpointWrapper):
            block = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
            model.set_submodule(name, block)
        wrapped[name] = block
    return wrapped


def offload(model: nn.Module, horizon: int, device: torch.device) -> None:
    """Keep the inputs of the model's checkpointed blocks in the host's memory until their backward pass is near.

    The inputs of at most `horizon` blocks are on the device at a time. Raises `ParallelError` for a model without
    checkpointed blocks.
    """
    from herringbone_parallel.torch.offloading import LayerOffloading

    blocks = [module for module in model.modules() if isinstance(module, CheckpointWrapper)]
    if not blocks:
        raise ParallelError(
            "sm_activation_offloading offloads the inputs of checkpointed layers, and the model has none: call"
            " apply_activation_checkpointing before offload_wrapper, or shard(model, checkpoint_activations=True)"
        )
    offloading = LayerOffloading(horizon=horizon, device=device)
    for block in blocks:
        offloading.wrap(block)


def replace_offload_wrapper(horizon: int, device: torch.device) -> Callable[[], None]:
    """Make torch's `offload_wrapper` offload as the job says; return the function that restores torch's way.

    torch's own wrapper copies every saved tensor to the host and back when it is needed, and so waits for each.
    """
    original_init, original_forward = OffloadWrapper.__init__, OffloadWrapper.forward

    def __init__(self: OffloadWrapper, module: nn.Module) -> None:  # noqa: N807 - it becomes the method of that name
        original_init(self, module)  # type: ignore[no-untyped-call]
        offload(module, horizon, device)

    def forward(self: OffloadWrapper, *args: Any, **options: Any) -> Any:
        return self._checkpoint_wrapped_module(*args, **options)

    OffloadWrapper.__init__, OffloadWrapper.forward = __init__, forward  # type: ignore[method-assign, assignment]

    def restore() -> None:
        OffloadWrapper.__init__, OffloadWrapper.forward = original_init, original_forward  # type: ignore[method-assign]

    return restore
