"""Loads the partition file of an earlier job, and compares it with the model."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel import partition_file


def load(path: Path, module: nn.Module, partitions: int) -> dict[str, int]:
    """Return the partition that a file keeps for this model.

    Raises `ParallelError` when the file cannot be read, or is for another model or number of partitions.
    """
    assigned = partition_file.load(path, (name for name, _ in module.named_modules()), partitions)
    _check_parameters(path, assigned, module)
    return assigned


def _check_parameters(path: Path, assigned: dict[str, int], module: nn.Module) -> None:
    """Raise `ParallelError` unless the modules that the file places are the modules with parameters or buffers."""
    placed: dict[int, tuple[str, int]] = {}
    for name, inner in module.named_modules():
        tensors = [tensor for tensor in (*inner._parameters.values(), *inner._buffers.values()) if tensor is not None]
        if bool(tensors) != (name in assigned):
            has = "has" if tensors else "has no"
            raise ParallelError(
                f"{path}: the partition file is for another model. In this one, module {name!r} {has} parameters or"
                " buffers of its own. Name the file of this model, or unset `load_partition` to decide again."
            )
        for tensor in tensors:
            other, partition = placed.setdefault(id(tensor), (name, assigned[name]))
            if partition != assigned[name]:
                raise ParallelError(
                    f"{path}: the partition file is for another model. In this one, modules {other!r} and {name!r}"
                    f" share a parameter, and the file puts them on partitions {partition} and {assigned[name]}."
                    " Unset `load_partition` to decide again."
                )
