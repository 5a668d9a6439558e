"""Replays the tensors of a measured step: bytes held at each moment, by reason, for one partition.

Each call has two slots: slot 2 t is during call t, slot 2 t + 1 is after it. So a library's work between two calls has
a place of its own, such as the reduction of a unit's gradients.

    tensor born at 1, freed at 3      lives in slots 2, 3, 4: during calls 1 and 2
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase
from herringbone_parallel.core.prediction.sharing import divided_calls, splits_of_modules
from herringbone_parallel.core.prediction.stages import SEVERAL, Partition
from herringbone_parallel.core.prediction.tied import TiedGradients

Bytes = NDArray[np.float64]
Flags = NDArray[np.bool_]
Slots = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Curves:
    """Bytes in each slot, for one partition.

    `batch` grows with the samples of a pass: activations and most temporaries. `inputs` grows with the samples of a
    step. `fixed` does not grow with samples: temporaries as large as a parameter. `gradients` are born in backwards,
    `update` holds the temporaries of clipping and of the optimizer. `kept` are the bytes of `batch` that one microbatch
    keeps from the end of its forward to its backward; `kept_of_calls` has them by the call that made them.
    """

    batch: Bytes
    inputs: Bytes
    fixed: Bytes
    gradients: Bytes
    update: Bytes
    kept: float
    kept_of_calls: Bytes

    @cached_property
    def made_again(self) -> Bytes:
        """The bytes of gradients in the slots in which a later backward makes them and adds them to the sums.

        >>> none = np.zeros(5)
        >>> curves = Curves(none, none, none, np.array([0.0, 0.0, 5.0, 5.0, 7.0]), none, 0.0, none)
        >>> curves.made_again.tolist()
        [0.0, 0.0, 5.0, 5.0, 2.0]
        """
        made = np.maximum(np.diff(self.gradients, prepend=self.gradients[:1]), 0.0)
        made[1:] += made[:-1]
        return np.asarray(made, dtype=np.float64)


class _Block(NamedTuple):
    """A checkpointed module in one pass: the first and last call of its forward, and the first of its backward."""

    first: int
    last: int
    backward: int
    microbatch: int


class Timeline:
    """The tensors of a measurement, and their curves.

    timeline = Timeline(measurement)
    timeline.curves(partition, 0, first_microbatch=False).batch.max()
    """

    def __init__(self, measurement: Measurement, *, checkpointing: bool = False, horizon: int | None = None) -> None:
        self.measurement = measurement
        self._curves: dict[tuple[object, ...], Curves] = {}
        self._tied = TiedGradients(measurement)
        self.slots = 2 * len(measurement.calls) + 2
        tensors = measurement.tensors
        self.bytes = np.array([tensor.bytes for tensor in tensors], dtype=np.float64)
        self.kinds = np.array([tensor.kind for tensor in tensors], dtype=np.int64)
        self.modules = np.array([tensor.module for tensor in tensors], dtype=np.int64)
        self.microbatches = np.array([tensor.microbatch for tensor in tensors], dtype=np.int64)
        born = np.array([tensor.born for tensor in tensors], dtype=np.int64)
        freed = np.array([tensor.freed for tensor in tensors], dtype=np.int64)
        self.calls_born = born
        self.start = np.maximum(2 * born, 0)
        self.end = np.where(freed < 0, self.slots, 2 * freed - 1)
        self.end = np.maximum(self.end, self.start)
        if checkpointing:
            self._recompute(horizon)
        phases = np.array([call.phase for call in measurement.calls], dtype=np.int64)
        self.phases = phases
        # The phase of a tensor is that of its birth; what was there before the step counts as data.
        born = self.calls_born
        self.phase = phases[np.maximum(born, 0)] if len(phases) else np.zeros(len(born), dtype=np.int64)
        self.phase = np.where(born < 0, int(Phase.DATA), self.phase)

    def curve(self, chosen: Flags, sizes: Bytes | None = None, lives: tuple[Slots, Slots] | None = None) -> Bytes:
        """Return the bytes of the chosen tensors in each slot; `lives` are other starts and ends than the measured."""
        sizes = (self.bytes if sizes is None else sizes)[chosen]
        start, end = (self.start, self.end) if lives is None else lives
        births = np.bincount(start[chosen], sizes, self.slots + 1)
        ends = np.bincount(end[chosen], sizes, self.slots + 1)
        return np.asarray(np.cumsum(births - ends)[: self.slots], dtype=np.float64)

    @cached_property
    def _in_update(self) -> Flags:
        return np.asarray(self.phase >= Phase.BETWEEN)

    @cached_property
    def _like_a_parameter(self) -> Flags:
        """Tensors of forwards and backwards that a larger batch does not enlarge.

        They are gradients of parameters before they are added up, and copies of parameters in another type.
        """
        measurement = self.measurement
        sizes: dict[int, set[int]] = {}
        shapes: dict[int, set[tuple[int, ...]]] = {}
        for parameter in measurement.parameters:
            for module in (parameter.module, *parameter.shared_by):
                sizes.setdefault(module, set()).add(parameter.bytes)
                shapes.setdefault(module, set()).add(parameter.shape)

        def is_fixed(module: int, size: int, born: int) -> bool:
            if born < 0 or module not in sizes:
                return False
            call = measurement.calls[born]
            operation = measurement.operations[call.operation]
            if "_to_copy" in operation.name:
                return bool(operation.shapes) and operation.shapes[0] in shapes[module]
            return call.phase == Phase.BACKWARD and size in sizes[module]

        columns = zip(self.modules.tolist(), self.bytes.tolist(), self.calls_born.tolist(), strict=True)
        return np.array([is_fixed(module, int(size), born) for module, size, born in columns], dtype=np.bool_)

    def curves(self, partition: Partition, index: int, *, first_microbatch: bool, tensor: int = 1) -> Curves:
        """Return the curves of one partition; `first_microbatch` leaves the activations of all others out.

        `tensor` is the number of ranks that share each layer.
        """
        key = (partition.count, partition.assignment, index, first_microbatch, tensor)
        if key not in self._curves:
            self._curves[key] = self._make(partition, index, first_microbatch=first_microbatch, tensor=tensor)
        return self._curves[key]

    def _make(self, partition: Partition, index: int, *, first_microbatch: bool, tensor: int) -> Curves:
        own = self._on(partition, index)
        kept_kinds = np.isin(self.kinds, (Kind.ACTIVATION, Kind.TEMPORARY))
        passing = own & kept_kinds & ~self._in_update
        if first_microbatch:
            passing &= self.microbatches == 0
        batch = passing & ~self._like_a_parameter
        update = kept_kinds & self._in_update
        # An optimizer that works on all parameters at once belongs to no module: each partition has its share.
        joint = update & (self._partition_of_tensors(partition) == SEVERAL)
        sizes = self.bytes if tensor == 1 else np.where(self._divided, self.bytes / tensor, self.bytes)
        lives = self._tied.lives(self.start, self.end, partition)
        kept = batch & (self.calls_born >= 0) & (self.start < self._first_backward) & (self.end > self._first_backward)
        kept_of_calls = np.bincount(self.calls_born[kept], sizes[kept], len(self.phases))
        return Curves(
            batch=self.curve(batch, sizes),
            inputs=self.curve(self.kinds == Kind.INPUT),
            fixed=self.curve(passing & self._like_a_parameter, sizes, lives),
            gradients=self.curve(own & (self.kinds == Kind.GRADIENT), sizes, lives),
            update=self.curve(own & update & ~joint, sizes) + self._share(partition, index) * self.curve(joint, sizes),
            kept=float(kept_of_calls.sum()),
            kept_of_calls=np.asarray(kept_of_calls, dtype=np.float64),
        )

    @cached_property
    def _divided(self) -> Flags:
        """Tensors of which each rank of a tensor group has a part: those of divided calls, and of divided weights."""
        splits = np.array([split != "" for split in splits_of_modules(self.measurement)], dtype=np.bool_)
        by_call = divided_calls(self.measurement)[np.maximum(self.calls_born, 0)] & (self.calls_born >= 0)
        of_weights = (self.kinds == Kind.GRADIENT) | self._like_a_parameter | self._in_update
        return np.where(of_weights, splits[self.modules], by_call)

    def _recompute(self, horizon: int | None) -> None:
        """Free activations inside of checkpointed blocks after the forward, until their backward makes them again.

        With a horizon, inputs of blocks leave the device, and come back so many blocks before their backward.
        """
        starts, ends, copies = [], [], []
        for blocks in _blocks(self.measurement):
            for number, block in enumerate(blocks):
                held = (self.kinds == Kind.ACTIVATION) & (self.microbatches == block.microbatch)
                inside = held & (self.calls_born >= block.first) & (self.calls_born <= block.last)
                lost = np.flatnonzero(inside & (self.end > 2 * block.backward))
                starts.append(np.full(len(lost), 2 * block.backward - 1))
                ends.append(self.end[lost].copy())
                copies.append(lost)
                self.end[lost] = np.maximum(2 * block.last + 1, self.start[lost])
                if horizon is None or not number:
                    continue
                # What the block before has made and left, and this one takes.
                before = blocks[number - 1]
                back = 2 * blocks[min(number + horizon, len(blocks) - 1)].backward - 1
                taken = (held & (self.calls_born >= before.first) & (self.calls_born <= before.last)) & (
                    self.end > back
                )
                away = np.flatnonzero(taken & (2 * block.last + 1 < back))
                starts.append(np.full(len(away), back))
                ends.append(self.end[away].copy())
                copies.append(away)
                self.end[away] = 2 * block.last + 1
        if copies:
            again = np.concatenate(copies)
            for name in ("bytes", "kinds", "modules", "microbatches", "calls_born"):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, values[again]]))
            self.start = np.concatenate([self.start, *starts])
            self.end = np.concatenate([self.end, *ends])

    @cached_property
    def _first_backward(self) -> int:
        """The slot before the first backward."""
        backwards = np.flatnonzero(self.phases == Phase.BACKWARD)
        return max(2 * int(backwards[0]) - 1, 0) if len(backwards) else self.slots - 1

    def _on(self, partition: Partition, index: int) -> Flags:
        if partition.count == 1:
            return np.ones(len(self.bytes), dtype=np.bool_)
        return np.asarray(self._partition_of_tensors(partition) == index)

    def _partition_of_tensors(self, partition: Partition) -> NDArray[np.int64]:
        if not len(partition.calls):
            return np.full(len(self.bytes), 0, dtype=np.int64)
        by_call = partition.calls[np.maximum(self.calls_born, 0)]
        by_module = partition.modules[self.modules]
        return np.where(by_module != SEVERAL, by_module, by_call)

    def _share(self, partition: Partition, index: int) -> float:
        if partition.count == 1:
            return 1.0
        sizes = np.array([p.bytes if p.trainable else 0 for p in self.measurement.parameters], dtype=np.float64)
        return float(sizes[partition.parameters == index].sum() / max(sizes.sum(), 1.0))


def _blocks(measurement: Measurement) -> list[list[_Block]]:
    """Return the checkpointed modules of each pass in the order of their forwards, without those inside of others."""
    checkpointed = {module.path for module in measurement.modules if module.checkpoint}
    block_of: list[str | None] = []
    for module in measurement.modules:
        path, outermost = module.path, None
        while path:
            outermost = path if path in checkpointed else outermost
            path = path.rpartition(".")[0]
        block_of.append(outermost)
    forwards: dict[tuple[int, str], list[int]] = {}
    backwards: dict[tuple[int, str], int] = {}
    for number, call in enumerate(measurement.calls):
        block = block_of[call.module]
        if block is None:
            continue
        key = (call.microbatch, block)
        if call.phase == Phase.FORWARD:
            forwards.setdefault(key, []).append(number)
        elif call.phase in (Phase.RECOMPUTE, Phase.BACKWARD):
            backwards.setdefault(key, number)
    passes: dict[int, list[_Block]] = {}
    for (microbatch, block), calls in forwards.items():
        if (microbatch, block) in backwards:
            found = _Block(calls[0], calls[-1], backwards[microbatch, block], microbatch)
            passes.setdefault(microbatch, []).append(found)
    return [sorted(blocks) for blocks in passes.values()]
