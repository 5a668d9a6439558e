"""The form of a measured step: everything about a script that predictions of memory and time need.

`torch.measure` writes it from one step of the unchanged script, without computing it, as one rank of a data-parallel
job: no layer is split or sharded. A step is a sequence of calls of operations; the position of a call in it is its
moment. Tensors live from one moment to another.

    modules      0 ""   1 "embed"   2 "block"   3 "block.fc"   4 "head"
    calls        forward of embed, fc, head; backward of head, fc, embed; optimizer
    tensors      fc's output: born at moment 12, freed at 40, kept for the backward of `block.fc`

    text = to_text(measurement); parse(text) == measurement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from herringbone_contract.errors import ParallelError
from herringbone_contract.prediction.devices import Link
from herringbone_parallel.core.partition.costs import CostTree

Count = Annotated[int, Meta(ge=0)]
VERSION = 2


class Phase(IntEnum):
    """The part of a step to which a call belongs."""

    # Making and moving the batch, and all that is before the first forward of the step.
    DATA = 0
    FORWARD = 1
    # Operations of a forward that runs again inside a backward.
    RECOMPUTE = 2
    BACKWARD = 3
    # Between the last backward and the optimizer, such as clipping.
    BETWEEN = 4
    OPTIMIZER = 5


class Kind(IntEnum):
    """The reason for which a tensor's memory is held."""

    PARAMETER = 0
    BUFFER = 1
    GRADIENT = 2
    STATE = 3
    INPUT = 4
    # Born in a forward, and still held when the backward begins.
    ACTIVATION = 5
    TEMPORARY = 6


class Module(Struct, frozen=True, array_like=True):
    """One module: its path ("" is the model), its class, and the way in which ranks may share it.

    `split` says how tensor parallelism divides the module's weights: "column", "row", "embedding", or "" for modules
    that every rank has whole. `unit` is True for a module whose parameters are gathered and freed together when
    training states are sharded, `late` for a unit whose inputs need no gradient: `fully_shard` reduces its gradients at
    the end of a backward. `checkpoint` is True for one whose forward may be run again instead of kept.
    """

    path: str
    type: str
    split: str = ""
    unit: bool = False
    checkpoint: bool = False
    late: bool = False


class Parameter(Struct, frozen=True, array_like=True):
    """One parameter: name, owner (an index of `modules`), shape and dtype, and what training holds for it.

    `state_bytes` is the optimizer's. A parameter that modules share is listed once, with its first owner, and
    `shared_by` has the others.
    """

    name: str
    module: Count
    shape: tuple[Count, ...]
    dtype: str
    bytes: Count
    trainable: bool = True
    state_bytes: Count = 0
    shared_by: tuple[Count, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements, 1 for a scalar."""
        return math.prod(self.shape)


class Operation(Struct, frozen=True, array_like=True):
    """One distinct operation: name, the shapes of its tensor arguments, dtype, and its work.

    `operations` counts a multiplication and an addition as two. `moved_bytes` are read and written. `fallback` is True
    where only a run of the operation tells the shape of its result.
    """

    name: str
    shapes: tuple[tuple[Count, ...], ...]
    dtype: str
    operations: Count
    moved_bytes: Count
    fallback: bool = False


class Call(Struct, frozen=True, array_like=True):
    """One call: indices of its operation and of the innermost module, the phase, and the microbatch.

    A microbatch is one pass through the model; a step that accumulates gradients has several.
    """

    operation: Count
    module: Count
    phase: Phase
    microbatch: Count = 0


class Tensor(Struct, frozen=True, array_like=True):
    """One allocation: bytes, reason, the moments of its birth and its end, and the module that made it.

    `born` is -1 for memory that was there before the step, `freed` -1 for memory that outlives it.
    """

    bytes: Count
    kind: Kind
    born: int
    freed: int
    module: Count
    microbatch: Count = 0


class Measurement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured step.

    `ranks` is the number of data-parallel ranks that the script saw, `batch` its samples a step and rank, and
    `batch_divides` True where the script gives each rank fewer samples when there are more ranks. `microbatches` is the
    number of passes in a step. `tree` are the costs from which a pipeline's partition is decided, as the library itself
    would measure them. `wrapper` names the way in which the script trains on several ranks by itself: "",
    "DistributedDataParallel", "fully_shard", "smp", "accelerate". `data_seconds` is the time to make a step's batches
    in the script's own `DataLoader`, which has `data_workers` workers in a job; 0 without a loader. `epoch_samples` is
    the number of samples of its data set. `notes` tell what could not be measured.

    The step is a turn of the script's loop: from the return of the optimizer's first step to that of its second. So the
    optimizer's state and the last step's gradients were there before it, and tensors of the last step to which the
    script still refers. A script that makes one step only is measured in that step, and a note says so.
    """

    version: int = VERSION
    framework: str
    device: str
    ranks: int = 1
    batch: int | None = None
    batch_divides: bool = False
    microbatches: int = 1
    wrapper: str = ""
    data_seconds: float = 0.0
    data_workers: int = 0
    epoch_samples: int | None = None
    tree: CostTree | None = None
    modules: tuple[Module, ...]
    parameters: tuple[Parameter, ...]
    operations: tuple[Operation, ...]
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()


def prefixes(path: str) -> Iterator[str]:
    """Yield a path and all paths above it, "" last.

    >>> list(prefixes("a.b"))
    ['a.b', 'a', '']
    """
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def nearest(measurement: Measurement, is_meant: Callable[[Module], object]) -> list[int | None]:
    """Return, for each module, the nearest module around it that is meant, itself included; None without one."""
    meant = {module.path: number for number, module in enumerate(measurement.modules) if is_meant(module)}
    return [
        next((meant[path] for path in prefixes(module.path) if path in meant), None) for module in measurement.modules
    ]


class Job(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn of the loop of the job itself, whose ranks ran together on one machine: by the clock, with its waits."""

    distribution: dict[str, Any]
    ranks: int
    seconds: float


class Timings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a script's steps on this machine's cores.

    `forward_s`, `backward_s` and `optimizer_s` are those of a step of the whole model, without messages, while
    `processes` took such steps at the same time, each with `threads` threads. `modules` divides the first two: seconds
    of each module's own code in the forward and in the backward of a step, by path.

    `copied_bytes_per_second` is the rate of copies. `collectives` are the costs of messages between ranks of this host,
    as processor time: "all_reduce", "all_gather" and "reduce_scatter" as steps of a ring, "send". `job` is the time of
    the job's own ranks, None where they could not run here. All seconds but those are of a machine that no other
    program uses; by the clock, the steps took `slowdown` times as long.
    """

    version: int = VERSION
    device: str
    processes: int = 1
    threads: int = 1
    forward_s: float
    backward_s: float
    optimizer_s: float
    modules: dict[str, tuple[float, float]] = {}
    copied_bytes_per_second: float | None = None
    collectives: dict[str, Link] = {}
    job: Job | None = None
    slowdown: float = 1.0


def to_text(measurement: Measurement | Timings) -> bytes:
    """Return the measurement as JSON; `parse` and `parse_timings` read it back."""
    return msgspec.json.encode(measurement)


def parse(text: str | bytes) -> Measurement:
    """Return the measurement that `to_text` wrote; raise `ParallelError` for any other text."""
    return _checked(_decode(text, Measurement, "measurement"), "measurement")


def parse_timings(text: str | bytes) -> Timings:
    """Return the timings that `to_text` wrote; raise `ParallelError` for any other text."""
    return _checked(_decode(text, Timings, "file of timings"), "file of timings")


_Form = TypeVar("_Form", Measurement, Timings)


def _decode(text: str | bytes, form: type[_Form], name: str) -> _Form:
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParallelError(f"this is not a {name}: {error}. Measure the script again.") from error


def _checked(form: _Form, name: str) -> _Form:
    if form.version != VERSION:
        raise ParallelError(
            f"this {name} has version {form.version}, and this release reads {VERSION}. Measure the script again."
        )
    return form
