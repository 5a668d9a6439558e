"""The local part of a model: the parameters, buffers and modules whose data is on this rank.

After the partition, tensors of other ranks are on the `meta` device, which has shapes and no data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that live on this rank, with their names."""
    for name, parameter in module.named_parameters():
        if not parameter.is_meta:
            yield name, parameter


def own_parameters(module: nn.Module) -> list[nn.Parameter | None]:
    """Return torch's own parameters. In a step `module.parameters()` yields placed tensors."""
    return [parameter for inner in module.modules() for parameter in inner._parameters.values()]


def named_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that this rank has, with their names."""
    for name, buffer in module.named_buffers():
        if not buffer.is_meta:
            yield name, buffer


def named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules whose parameters and buffers are all on this rank, with their names."""
    for name, inner in module.named_modules():
        if not any(tensor.is_meta for tensor in itertools.chain(inner.parameters(), inner.buffers())):
            yield name, inner


def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the state dict, with tensors on `meta` for the parameters of other ranks."""
    # Without torch's function protocol, by which parameters of other ranks refuse to be read.
    with torch._C.DisableTorchFunctionSubclass():
        return module.state_dict(*args, **kwargs)


def tie(values: dict[str, Any], module: nn.Module, prefix: str = "") -> dict[str, Any]:
    """Return a state dict's values with one tensor under all names of a tied parameter, so that a file has it once.

    A file of safetensors has one of the names only; the others are added.
    """
    tensors = state_dict(module, prefix=prefix, keep_vars=True)
    first: dict[int, Any] = {}
    for name, tensor in tensors.items():
        if name in values and torch.is_tensor(tensor):
            first.setdefault(id(tensor), values[name])
    values.update({name: first[id(tensor)] for name, tensor in tensors.items() if id(tensor) in first})
    return values


def with_data(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state dict that have data on this rank."""
    return {name: value for name, value in state_dict.items() if not (torch.is_tensor(value) and value.is_meta)}


def fill_with(module: nn.Module, whole: Mapping[str, torch.Tensor]) -> None:
    """Give the module all its parameters and buffers on the CPU, from the state dict of the whole model."""
    # By identity of the old parameter, so that tied parameters stay tied.
    new_parameters: dict[int, nn.Parameter] = {}
    for path, inner in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in inner._parameters.items():
            if parameter is not None:
                if id(parameter) not in new_parameters:
                    values = whole[prefix + name].cpu()
                    new_parameters[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
                inner._parameters[name] = new_parameters[id(parameter)]
        for name, buffer in inner._buffers.items():
            # A buffer that is not persistent has no entry.
            if buffer is not None and prefix + name in whole:
                inner._buffers[name] = whole[prefix + name].cpu()
