"""Predicts the memory of the largest rank of each pipeline partition, at the moment when it holds the most.

    model = MemoryModel(measurement)
    model.memory(layout_of(distribution, 4, measurement))[0].peak

The measured step is replayed, with what the layout's library holds in addition:

    DDP, smddp     buckets as large as all gradients, from the wrapping on
    fully_shard    1/n of parameters, gradients and states; units that are gathered and reduced         (shards.py)
    version 1      1/p of the layers, the live microbatches of the schedule, messages, buckets of its reducer; parts of
                   states, or of the whole training state, which a step gathers
    tensor         1/t of the layers that are shared, and of what is computed between them                (sharing.py)

The replayed step is one in which the optimizer has its states already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from herringbone_contract.prediction.answer import Memory
from herringbone_parallel.core.pipeline.offloading import peak as offloaded_peak
from herringbone_parallel.core.pipeline.offloading import task_order
from herringbone_parallel.core.pipeline.simulate import Segment, simulate
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase
from herringbone_parallel.core.prediction.shards import Units
from herringbone_parallel.core.prediction.sharing import Elements
from herringbone_parallel.core.prediction.stages import Partition, Stages, Visit
from herringbone_parallel.core.prediction.timeline import Bytes, Timeline

Allocator = Literal["cpu", "cuda"]
# The elements that `shard_optimizer_state` gathers together.
_GATHERED_UPDATES = 25_000_000
# Messages of a pipeline on CPUs: the buffer of a receiver, and the content that is copied out of it.
_INLINE, _TINY = (1 << 19) + 192, 1 << 15
# The most that a half-empty segment of each kind of tensor wastes.
_SEGMENT = 20 << 20


class Held(NamedTuple):
    """The bytes that one rank holds in each slot, by kind. Numbers are held in all slots."""

    parameters: float
    states: float
    gradients: Bytes
    activations: Bytes
    communication: Bytes

    def at_peak(self, allocator: Allocator) -> Memory:
        """Return the memory in the slot with the most bytes."""
        total = self.gradients + self.activations + self.communication
        moment = int(np.argmax(total))
        kinds = {
            "parameters": round(self.parameters),
            "states": round(self.states),
            "gradients": round(float(self.gradients[moment])),
            "activations": round(float(self.activations[moment])),
            "communication": round(float(self.communication[moment])),
        }
        return Memory(**kinds, slack=slack(list(kinds.values())) if allocator == "cuda" else 0)


class _Flow(NamedTuple):
    """By partition: the most live microbatches, and the most bytes that they keep for their backwards."""

    live: tuple[int, ...]
    kept: tuple[float, ...]


class _State(NamedTuple):
    """The training state of one rank: bytes, and the parts of a gradient and of an update that it has between passes.

    `buckets` are those of the replicas' averages. `gathered` are whole parameters of shards during the passes,
    `reduced` what their reduction needs in addition, `updated` what ends a divided update.
    """

    parameters: float
    states: float
    trained: float
    gradient_part: float
    buckets: float
    gathered: float
    reduced: float
    updated: float
    update_part: float


class MemoryModel:
    """Predicts one measurement's memory under any number of layouts.

    model = MemoryModel(measurement, Stages(measurement))
    [memory.peak for memory in model.memory(layout)]
    """

    def __init__(self, measurement: Measurement, stages: Stages | None = None) -> None:
        self._measurement = measurement
        self._stages = stages or Stages(measurement)
        # By checkpointing and horizon, which change the lives of tensors.
        self._timelines: dict[tuple[bool, int | None], Timeline] = {}
        self._units: dict[Timeline, Units] = {}
        self._flows: dict[tuple[object, ...], _Flow] = {}
        # The slots of forwards and backwards, in which microbatches are live.
        phases = np.repeat(np.array([call.phase for call in measurement.calls], dtype=np.int64), 2)
        self._passing = np.zeros(2 * len(measurement.calls) + 2, dtype=np.bool_)
        self._passing[: len(phases)] = (phases > Phase.DATA) & (phases < Phase.BETWEEN)
        parameters = measurement.parameters
        self._parameter_bytes = np.array([p.bytes for p in parameters], dtype=np.float64)
        self._state_bytes = np.array([p.state_bytes for p in parameters], dtype=np.float64)
        self._trainable = np.array([p.trainable for p in parameters], dtype=np.bool_)
        self._elements = Elements(measurement)

    def memory(self, layout: Layout, allocator: Allocator = "cpu") -> tuple[Memory, ...]:
        """Return the memory of each partition's largest rank; one entry where the model is not split into partitions.

        `allocator` is the one of the device, whose blocks are larger than the tensors in them. Raises `ParallelError`
        for a layout whose partition cannot be decided.
        """
        partition = self._stages.of(layout)
        hold = self._sharded if layout.library in (Library.FULLY_SHARD, Library.VERSION2) else self._held
        return tuple(
            max((held.at_peak(allocator) for held in hold(layout, partition, index, allocator)), key=lambda m: m.peak)
            for index in range(partition.count)
        )

    def _sharded(self, layout: Layout, partition: Partition, index: int, allocator: Allocator) -> tuple[Held, ...]:
        """Return what a rank holds under `fully_shard`."""
        ranks, tensor = layout.mesh.shard * layout.mesh.context, layout.mesh.tensor
        timeline = self._timeline(layout)
        if timeline not in self._units:
            self._units[timeline] = Units(timeline)
        copied = allocator == "cpu"
        sharded = self._units[timeline].sharded(ranks, self._elements.fractions(tensor), copied=copied)
        curves = timeline.curves(partition, index, first_microbatch=False, tensor=tensor)
        # Ranks of one context have parts of its sequences.
        scale = layout.batch_scale / layout.mesh.context
        held = Held(
            parameters=sharded.parameters + self._buffers(partition, index),
            states=sharded.states,
            gradients=sharded.gradients,
            activations=curves.inputs * layout.batch_scale
            + curves.batch * scale
            + curves.fixed
            + curves.update / ranks,
            communication=sharded.communication,
        )
        return (held,)

    def _held(self, layout: Layout, partition: Partition, index: int, allocator: Allocator) -> tuple[Held, ...]:
        """Return what a rank holds whose replicas average whole gradients, or divide states as version 1 does.

        The first one holds this in the first backward of a step, the second one in the next backwards.
        """
        state = self._training_state(layout, partition, index)
        communication = np.zeros(len(self._passing))
        if layout.mesh.data > 1:
            # Buckets exist from the wrapping on, next to the gradients, which are copied into them and back.
            communication += state.buckets
        communication[self._passing] += state.gathered
        communication[self._last_passing] += state.reduced
        communication[-1] += state.updated
        if layout.mesh.pipeline > 1:
            received, buffers = self._messages(layout, partition, index, allocator)
            communication += buffers
            communication[self._passing] += received
        parameters = state.parameters + self._buffers(partition, index)
        return tuple(
            Held(parameters, state.states, gradients, activations, communication)
            for gradients, activations in self._passes(layout, partition, index, state)
        )

    def _training_state(self, layout: Layout, partition: Partition, index: int) -> _State:
        own, mesh, limits = partition.parameters == index, layout.mesh, layout.limits
        fractions = self._elements.fractions(mesh.tensor)
        sizes, states = self._parameter_bytes * fractions * own, self._state_bytes * fractions * own
        elements = self._elements.of_rank(mesh.tensor)
        divided = own & (mesh.shard > 1) & (elements >= limits.whole)
        trained = sizes * self._trainable
        gathered = float(sizes[divided].sum())
        of_shards = float(trained[divided].sum())
        size = gathered / max(float(elements[divided].sum()), 1.0)
        # A pipeline gathers its whole partition for a step, because its ranks call modules in different orders.
        if mesh.pipeline == 1:
            gathered = min(gathered, limits.live * size)
        part = np.where(divided, 1.0 / mesh.shard, 1.0)
        # With `shard_optimizer_state`, each replica updates its part, and gathers the others', some at a time.
        replicas = mesh.data if layout.shard_optimizer_state else 1
        update = min(float(trained.sum()), _GATHERED_UPDATES * 4.0) if replicas > 1 else 0.0
        total = max(float(trained.sum()), 1.0)
        return _State(
            parameters=float((sizes * part).sum()),
            states=float((states * part).sum()) / replicas,
            trained=float(trained.sum()),
            gradient_part=1.0 - of_shards / total * (1.0 - 1.0 / mesh.shard),
            buckets=float(trained[~divided].sum()),
            gathered=gathered,
            # The gradients of a bucket are copied to be reduced, and this rank's part out of it.
            reduced=min(of_shards, limits.bucket * size) * (1.0 + 1.0 / mesh.shard),
            updated=update * (1.0 + 1.0 / replicas),
            update_part=float((trained * part).sum()) / total / replicas,
        )

    def _passes(self, layout: Layout, partition: Partition, index: int, state: _State) -> Iterator[tuple[Bytes, Bytes]]:
        """Yield gradients and activations in each slot, for the first backward of a step and for the next ones."""
        version1 = layout.library is Library.VERSION1
        curves = self._timeline(layout).curves(partition, index, first_microbatch=version1, tensor=layout.mesh.tensor)
        # Of one pass; the measured ones may have had another size.
        scale = layout.batch_scale
        if version1:
            scale *= self._measurement.microbatches / layout.microbatches
        activations = curves.inputs * layout.batch_scale + curves.batch * scale
        activations += curves.fixed + curves.update * state.update_part
        passes = layout.microbatches if version1 else 1
        if version1:
            flow = self._flow(layout, partition)
            # Those of the other live microbatches, next to the one that is replayed.
            others = max(flow.kept[index] - curves.kept, 0.0) * scale
        # Shards have whole gradients until a step's passes have ended.
        parts = np.where(self._passing, 1.0, state.gradient_part)
        if layout.aggregation == 1:
            # With an aggregation, the sums of earlier backwards are always there.
            yield curves.gradients * parts, activations + (self._passing * others if version1 else 0.0)
        if passes * layout.aggregation == 1:
            return
        if version1:
            # One microbatch less is live, unless a fresh one has taken the place of the first.
            live = flow.live[index]
            others *= (min(live, layout.microbatches - 1) - 1) / (live - 1) if live > 1 else 1.0
            activations = activations + self._passing * others
        # Gradients of this backward are added to the earlier ones, parameter by parameter.
        grown = np.where(self._passing, state.trained, curves.gradients)
        if layout.aggregation > 1:
            grown = np.full_like(grown, state.trained)
        yield grown * parts, activations + curves.made_again * self._passing

    def _timeline(self, layout: Layout) -> Timeline:
        # Version 1 offloads whole microbatches, which its live ones account for.
        horizon = layout.horizon if layout.offloading and layout.library is Library.VERSION2 else None
        key = (layout.checkpointing, horizon)
        if key not in self._timelines:
            self._timelines[key] = Timeline(self._measurement, checkpointing=layout.checkpointing, horizon=horizon)
        return self._timelines[key]

    @cached_property
    def _last_passing(self) -> int:
        """The slot after the last backward."""
        passing = np.flatnonzero(self._passing)
        return int(passing[-1]) if len(passing) else 0

    def _messages(self, layout: Layout, partition: Partition, index: int, allocator: Allocator) -> tuple[float, float]:
        """Return the bytes of the values that live microbatches have received, and of buffers for more.

        In the host's memory a message up to 512 KiB arrives in a buffer of that size, and stays there unless it is
        tiny; each peer has one more. Source: torch.model_parallel.runtime.transport.
        """
        sizes = [message.forward_bytes for message in partition.messages if message.target == index]
        buffers = 0
        if allocator == "cpu":
            sizes = [_INLINE if _TINY <= size <= _INLINE else size for size in sizes]
            buffers = (layout.mesh.pipeline - 1) * _INLINE
        return float(max(self._flow(layout, partition).live) * sum(sizes)), float(buffers)

    def _buffers(self, partition: Partition, index: int) -> float:
        modules, sizes = self._buffers_of_modules
        own = partition.modules[modules] == index if partition.count > 1 else np.ones(len(modules), dtype=np.bool_)
        return float(sizes[own].sum())

    @cached_property
    def _buffers_of_modules(self) -> tuple[NDArray[np.int64], Bytes]:
        """The module and the bytes of each buffer."""
        rows = [(tensor.module, tensor.bytes) for tensor in self._measurement.tensors if tensor.kind == Kind.BUFFER]
        modules, sizes = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        return modules, sizes.astype(np.float64)

    def _flow(self, layout: Layout, partition: Partition) -> _Flow:
        """Return the live microbatches of each partition, and the bytes that they keep, of the measured size."""
        horizon = layout.horizon if layout.offloading else None
        way = (partition.count, partition.assignment, layout.mesh.tensor)
        key = (way, layout.microbatches, layout.pipeline, layout.active, horizon, self._timeline(layout))
        if key not in self._flows:
            self._flows[key] = self._simulate(layout, partition, horizon)
        return self._flows[key]

    def _simulate(self, layout: Layout, partition: Partition, horizon: int | None) -> _Flow:
        timeline, tensor = self._timeline(layout), layout.mesh.tensor
        curves = [
            timeline.curves(partition, index, first_microbatch=True, tensor=tensor) for index in range(partition.count)
        ]
        if horizon is not None:
            live = _live_on_device(partition.count, layout.microbatches, layout.pipeline, layout.active, horizon)
            return _Flow(live, tuple(number * curve.kept for number, curve in zip(live, curves, strict=True)))
        visits = partition.visits or (Visit(0, 0, len(self._passing)),)
        # Each call counts the same: small ones take about equally long, and large ones rarely differ between visits.
        program = [
            Segment(
                visit.partition,
                forward_s=visit.end - visit.start,
                backward_s=2 * (visit.end - visit.start),
                weight_s=visit.end - visit.start,
                kept_bytes=round(float(curves[visit.partition].kept_of_calls[visit.start : visit.end].sum())),
            )
            for visit in visits
        ]
        result = simulate([program] * layout.microbatches, pipeline=layout.pipeline, active=layout.active)
        return _Flow(result.peak_live, tuple(map(float, result.peak_kept_bytes)))


def slack(sizes: Sequence[int]) -> int:
    """Return the bytes that CUDA's caching allocator reserves beyond these, if each kind lies in blocks of its own.

    It asks the device for 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB, and multiples of 2 MiB for
    larger ones. Source: torch, c10/cuda/CUDACachingAllocator.h.

    >>> slack([3 << 20, 0])
    17825792
    """
    reserved = (size if size <= 0 else -(-size // _SEGMENT) * _SEGMENT for size in sizes)
    return sum(reserved) - sum(sizes)


@lru_cache(maxsize=256)
def _live_on_device(partitions: int, microbatches: int, pipeline: str, active: int, horizon: int) -> tuple[int, ...]:
    """Return, by partition, the most microbatches whose activations are in the device's memory at once.

    >>> _live_on_device(2, 8, "interleaved", 4, 0)
    (1, 1)
    """
    orders = (
        task_order(rank=rank, partitions=partitions, microbatches=microbatches, pipeline=pipeline, active=active)
        for rank in range(partitions)
    )
    return tuple(offloaded_peak(order, horizon) for order in orders)
