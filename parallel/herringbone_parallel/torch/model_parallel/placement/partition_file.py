"""The partition file on disk: the first rank writes the decision, and the first rank of a later job loads it."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_contract.partition_file import PartitionFile, parse, to_text


def load(path: Path, module: nn.Module, partitions: int) -> dict[str, int]:
    """Return the partition that a file keeps for this model.

    Raises `ParallelError` when the file cannot be read, or is for another model or number of partitions.
    """
    try:
        file = parse(path.read_bytes())
        file.check((name for name, _ in module.named_modules()), partitions)
    except OSError as error:
        raise ParallelError(
            f"the partition file {str(path)!r} cannot be read: {error.strerror}. Run once without `load_partition` to"
            " write it, and make it reachable from the first host."
        ) from error
    except ParallelError as error:
        raise ParallelError(f"{path}: {error}") from error
    _check_parameters(path, file, module)
    return file.assigned


def _check_parameters(path: Path, file: PartitionFile, module: nn.Module) -> None:
    """Raise `ParallelError` unless the modules that the file places are the modules with parameters or buffers."""
    assigned = file.assigned
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


def write(path: Path, file: PartitionFile) -> None:
    """Write the file completely or not at all, with the folders above it. Raises `ParallelError` when it cannot."""
    # In the same folder, because a rename is atomic only within one file system.
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(to_text(file))
        part.replace(path)
    except OSError as error:
        raise ParallelError(
            f"the partition file {str(path)!r} cannot be written: {error.strerror}. Name a path that the first rank can"
            " write to, or unset `partition_file`."
        ) from error
