"""The partition file on disk: the first rank writes the decision, and the first rank of a later job loads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from herringbone_contract.errors import ParallelError
from herringbone_contract.files import write_whole
from herringbone_contract.model_parallel.partition_file import PartitionFile, parse, to_text


def load(path: Path, modules: Iterable[str], partitions: int) -> dict[str, int]:
    """Return the partition that a file keeps for a model of these modules.

    Raises `ParallelError` when the file cannot be read, or is for another model or number of partitions.
    """
    try:
        file = parse(path.read_bytes())
        file.check(modules, partitions)
    except OSError as error:
        raise ParallelError(
            f"the partition file {str(path)!r} cannot be read: {error.strerror}. Run once without `load_partition` to"
            " write it, and make it reachable from the first host."
        ) from error
    except ParallelError as error:
        raise ParallelError(f"{path}: {error}") from error
    return file.assigned


def write(path: Path, file: PartitionFile) -> None:
    """Write the file completely or not at all, with the folders above it. Raises `ParallelError` when it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_text(file).encode(), mode=0o666)
    except OSError as error:
        raise ParallelError(
            f"the partition file {str(path)!r} cannot be written: {error.strerror}. Name a path that the first rank can"
            " write to, or unset `partition_file`."
        ) from error
