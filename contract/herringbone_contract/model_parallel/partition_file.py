"""The partition file: the partition of each module of a model, its cost, and its distance from the best.

The model-parallel library writes it (`partition_file`), later jobs load it (`load_partition`), and `herringbone
partition show` prints it. It is JSON. This module turns it into text and back; the caller reads and writes the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from herringbone_contract.errors import ParallelError

VERSION = 1
# Names shown in a message before the rest is counted.
_SHOWN = 3

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0.0)]


class ModuleAssignment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One module: its dotted path, its own costs, and its partition.

    `partition` is None for a module without parameters of its own, which runs on the partition of its inputs.
    """

    path: str
    partition: Count | None
    parameter_bytes: Count
    activation_bytes: Count
    seconds: Amount


class PartitionLoad(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The load of one partition; `cost` is its share of the whole model's cost, communication included."""

    cost: Amount
    memory_bytes: Count
    seconds: Amount
    communication_seconds: Amount


class PartitionFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decided partition.

    `modules` are all modules in call order, parents first; `loads` has one entry for each partition. No split's
    costliest partition costs less than `bound`; `certificate` names the proof of that, and `method` the search that
    found the split.
    """

    version: int = VERSION
    partitions: Annotated[int, Meta(ge=1)]
    memory_weight: Annotated[float, Meta(ge=0.0, le=1.0)]
    memory_cap: Count | None
    method: str
    bound: Amount
    certificate: str
    loads: tuple[PartitionLoad, ...]
    modules: tuple[ModuleAssignment, ...]

    @property
    def assigned(self) -> dict[str, int]:
        """The partition of each module with parameters of its own."""
        return {module.path: module.partition for module in self.modules if module.partition is not None}

    @property
    def bottleneck(self) -> float:
        """The cost of the costliest partition."""
        return max(load.cost for load in self.loads)

    @property
    def gap(self) -> float:
        """The distance of the costliest partition from the bound, as a fraction of the bound; 0 is proven best."""
        return self.bottleneck / self.bound - 1.0 if self.bound else 0.0

    def check(self, paths: Iterable[str], partitions: int) -> None:
        """Raise `ParallelError`, with the differences, unless the file is for these modules and partitions.

        `paths` are the dotted paths of all modules of the model, "" for the model itself.
        """
        if partitions != self.partitions:
            raise ParallelError(
                f"the partition file has {self.partitions} partitions, this job {partitions}. Set `partitions` to"
                f" {self.partitions}, or unset `load_partition` to decide again."
            )
        # `ours` are the model's modules, `theirs` the file's.
        ours, theirs = set(paths), {module.path for module in self.modules}
        if ours != theirs:
            differences = [
                *_named(theirs - ours, "The model lacks"),
                *_named(ours - theirs, "The file lacks"),
            ]
            raise ParallelError(
                f"the partition file is for another model. {' '.join(differences)} Name the file of this model, or"
                " unset `load_partition` to decide again."
            )


def to_text(file: PartitionFile) -> str:
    """Return the file's text; `parse` reads it back."""
    return msgspec.json.format(msgspec.json.encode(file), indent=1).decode() + "\n"


def parse(text: str | bytes) -> PartitionFile:
    """Read a text that `to_text` wrote.

    Raises `ParallelError` when it is not a partition file, is of another version, or contradicts itself.
    """
    try:
        # The version first: a file of another version would only show as one with unknown fields.
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            raise ParallelError(
                f"the partition file has format {version}; this release reads {VERSION}. Unset `load_partition`"
                " to decide again, or use the release that wrote it."
            )
        file = msgspec.json.decode(text, type=PartitionFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParallelError(f"this is not a partition file: {error}. Unset `load_partition` to write one.") from error
    used = set(file.assigned.values())
    # A file edited by hand could leave a pipeline stage without modules.
    if len(file.loads) != file.partitions or used != set(range(file.partitions)):
        raise ParallelError(
            f"the partition file contradicts itself: {file.partitions} partitions, costs of {len(file.loads)}, and"
            f" modules on {sorted(used)}. Unset `load_partition` to write a new one."
        )
    return file


class _Versioned(Struct):
    version: int


def _named(paths: set[str], sentence: str) -> list[str]:
    """Return a sentence that names the first few paths, or nothing when there are none."""
    if not paths:
        return []
    examples = sorted(paths)[:_SHOWN]
    rest = f" and {len(paths) - len(examples)} more" if len(paths) > len(examples) else ""
    return [f"{sentence} {', '.join(map(repr, examples))}{rest}."]
