"""Estimates the messages of a rank in a step: gradients, sharded states, split layers, sequences.

    exchanges = Exchanges(measurement, costs)
    exchanges.of(layout, partition, seconds, links).exposed

What depends on the measurement alone is computed once, because a search asks for hundreds of layouts.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from herringbone_parallel.core.prediction.communication import (
    BUCKET_COPIES,
    SHARD_COPIES,
    UPDATE_COPIES,
    Links,
)
from herringbone_parallel.core.prediction.compute import Array, Costs, ready_times
from herringbone_parallel.core.prediction.layout import Layout, Library
from herringbone_parallel.core.prediction.measurement import Measurement, Phase
from herringbone_parallel.core.prediction.sharing import Elements
from herringbone_parallel.core.prediction.stages import Partition
from herringbone_parallel.core.sums.buckets import cut_buckets
from herringbone_parallel.core.sums.simulate import Sum

# DistributedDataParallel's sizes: a small first bucket, so that sums start early.
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
# The bytes of a number on which ranks agree.
_NUMBER = 8


class Seconds(NamedTuple):
    """The work of each partition in a step: forward and backward, optimizer."""

    forward: Array
    backward: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        return self.forward + self.backward + self.optimizer


class Exchange(NamedTuple):
    """The seconds of a rank's messages: inside the forward and backward, and after them.

    `exposed` delay the step even where computation hides messages. `work` is the time that they take in all.
    """

    exposed: float = 0.0
    work: float = 0.0


class Exchanges:
    """The messages of one measured step for any layout; `costs` are those of its calls."""

    def __init__(self, measurement: Measurement, costs: Costs) -> None:
        self._measurement = measurement
        self._ready = ready_times(measurement, costs)
        self._elements = Elements(measurement)
        self._units = sum(module.unit for module in measurement.modules)
        # By number of partitions, assignment, parts, ranks of a tensor group, and elements.
        self._known_buckets: dict[tuple[int, int, int, int, float], list[tuple[int, float]]] = {}

    def of(self, layout: Layout, partition: Partition, seconds: Seconds, links: Links) -> Exchange:
        """Return the messages of the partition that has the most parameters [2]."""
        return _sum(
            self._gradients(layout, partition, seconds, links),
            self._shards(layout, partition, seconds, links),
            self._tensor_parallel(layout, partition.count, links),
            self._contexts(layout, links),
        )

    def _gradients(self, layout: Layout, partition: Partition, seconds: Seconds, links: Links) -> Exchange:
        """Return the sums of gradients over replicas, in buckets that leave while the backward goes on."""
        mesh = layout.mesh
        part, most = mesh.tensor * mesh.shard * mesh.context, math.inf
        group = links.group("R" if mesh.shard * mesh.context > 1 else "RSC")
        if layout.library is Library.VERSION1 and mesh.shard > 1:
            # Small parameters stay whole. `_shards` sums the gradients of the others over all ranks.
            group, part, most = links.group("RSC"), mesh.tensor, layout.limits.whole
        if group.ranks == 1:
            return Exchange()
        # Backwards before the last one of a step only add up their gradients.
        last_s = float(seconds.backward.max()) / layout.microbatches
        buckets = self._buckets(partition, part, mesh.tensor, most)
        if not buckets:
            return Exchange()
        sums = [Sum(size, ready * last_s) for size, ready in buckets]
        ends = group.summed(sums, layout.library)
        copies = links.copies_s(sum(size for size, _ in buckets), BUCKET_COPIES) + self._hooks_s(partition, links)
        alone = group.summed([Sum(bucket.size) for bucket in sums], layout.library)
        every = layout.aggregation
        return Exchange((max(0.0, max(ends) - last_s) + copies) / every, (max(alone) + copies) / every)

    def _shards(self, layout: Layout, partition: Partition, seconds: Seconds, links: Links) -> Exchange:
        """Return the gathers of parameters and the scatters of gradients between the ranks that share a state."""
        mesh = layout.mesh
        group = links.group("SC")
        if layout.library is Library.VERSION1 and mesh.shard > 1:
            return self._version1_shards(layout, partition, links)
        size = float(self._sizes(partition).max()) / mesh.tensor
        if group.ranks == 1:
            return self._shared_update(partition, size, links) if layout.shard_optimizer_state else Exchange()
        units = max(1, self._units // partition.count)
        passes = layout.microbatches
        gather = units * group.gather_s(size / units)
        scatter = units * group.scatter_s(size / units)
        forward, backward = float(seconds.forward.max()), float(seconds.backward.max())
        # The next unit is gathered while the last one computes: only the first gather, and what takes longer than the
        # computation, delay the step.
        hidden = (units - 1) / units
        exposed = gather / units + hidden * max(0.0, gather - forward / passes)
        exposed += (gather + scatter) / units + hidden * max(0.0, gather + scatter - backward / passes)
        # The measured time of a unit contains the fixed cost of its messages.
        fixed = 2 * group.gather_s(1) + group.scatter_s(1)
        own = units * max(0.0, links.unit_s - fixed) + links.copies_s(size, SHARD_COPIES)
        own += self._hooks_s(partition, links)
        return Exchange(passes * (exposed + own), passes * (2 * gather + scatter + own))

    def _version1_shards(self, layout: Layout, partition: Partition, links: Links) -> Exchange:
        """Return one gather of the divided parameters before a step, and one reduction of their gradients after it."""
        mesh, limits = layout.mesh, layout.limits
        elements = self._elements.of_rank(mesh.tensor)
        divided = elements >= limits.whole
        size = float(self._sizes(partition, divided).max()) / mesh.tensor
        group = links.group("S")
        gathers = 1
        if partition.count == 1 and elements[divided].sum() > limits.live:
            # Modules gather their parameters themselves, for each forward and backward.
            gathers = 2 * layout.microbatches
        # gloo has no scatter that is faster than a sum of everything.
        if links.on_cores:
            reduced = links.group("RS").sum_s(size)
        else:
            reduced = group.scatter_s(size) + links.group("R").sum_s(size / mesh.shard)
        # Ranks agree on the call, and on the parameters that were used.
        agreed = group.gather_s(_NUMBER) + links.group("RS").sum_s(_NUMBER)
        seconds = agreed + gathers * group.gather_s(size) + reduced + links.copies_s(size, SHARD_COPIES)
        return Exchange(seconds, seconds)

    def _shared_update(self, partition: Partition, size: float, links: Links) -> Exchange:
        """Return the gather of `size` bytes of parameters, of which each replica has updated a part."""
        group = links.group("R")
        if group.ranks == 1:
            return Exchange()
        gather = group.gather_s(size)
        gather += links.copies_s(size, UPDATE_COPIES) + self._hooks_s(partition, links)
        return Exchange(gather, gather)

    def _hooks_s(self, partition: Partition, links: Links) -> float:
        """Return the seconds of the Python that a library runs for each parameter."""
        return links.parameter_s * len(self._measurement.parameters) / partition.count

    def _tensor_parallel(self, layout: Layout, partitions: int, links: Links) -> Exchange:
        """Return the sums of activations after rows and before columns; nothing hides them."""
        if layout.mesh.tensor == 1:
            return Exchange()
        group = links.group("T")
        passes = layout.microbatches / self._measurement.microbatches
        scale = layout.batch_scale / layout.mesh.context / passes
        sums_s = sum(count * group.sum_s(size * scale) for size, count in self._sums_of_layers.items())
        seconds = passes * sums_s / partitions
        return Exchange(seconds, seconds)

    def _contexts(self, layout: Layout, links: Links) -> Exchange:
        """Return the exchange of keys and values between the ranks that share a sequence."""
        if layout.mesh.context == 1:
            return Exchange()
        group = links.group("C")
        sent = self._attention_bytes * layout.batch_scale / layout.mesh.context
        # Keys and values pass once in the forward; with their gradients once more in the backward.
        seconds = 3 * (layout.mesh.context - 1) * group.send_s(sent)
        return Exchange(seconds, seconds)

    def _buckets(self, partition: Partition, part: int, tensor: int, most: float) -> list[tuple[int, float]]:
        """Return the buckets of the partition with the most parameters, of which a rank has one of `part` parts.

        They have the parameters of fewer than `most` elements on a rank of `tensor` ranks that share layers. A bucket
        is its bytes, and the part of the backward that is over when it is complete.
        """
        key = (partition.count, partition.assignment, part, tensor, most)
        if key not in self._known_buckets:
            homes, largest = partition.parameters, int(np.argmax(self._sizes(partition)))
            smaller = self._elements.of_rank(tensor) < most
            ready = [
                (self._measurement.parameters[index].bytes // part, at)
                for index, at in self._ready
                if homes[index] == largest and smaller[index]
            ]
            sizes = [("gradient", size) for size, _ in ready]
            cut = cut_buckets(sizes, first_bytes=_FIRST_BUCKET, most_bytes=_BUCKET)
            buckets = [(sum(ready[i][0] for i in bucket), ready[bucket[-1]][1]) for bucket in cut]
            self._known_buckets[key] = buckets
        return self._known_buckets[key]

    @cached_property
    def _gradient_bytes(self) -> Array:
        return np.array([p.bytes if p.trainable else 0 for p in self._measurement.parameters], dtype=np.float64)

    def _sizes(self, partition: Partition, which: NDArray[np.bool_] | bool = True) -> Array:
        """Return the bytes of each partition's gradients, of all parameters or of some."""
        weights = np.where(which, self._gradient_bytes, 0.0)
        sizes = np.bincount(partition.parameters, weights=weights, minlength=partition.count)
        return sizes.astype(np.float64)

    @cached_property
    def _sums_of_layers(self) -> dict[float, int]:
        """The bytes of each sum over the ranks that share layers, in one measured step, and the number of such sums.

        A row sums its result in the forward, a column the gradient of its input in the backward.
        """
        operations, modules = self._measurement.operations, self._measurement.modules
        sizes: Counter[float] = Counter()
        for call in self._measurement.calls:
            split, operation = modules[call.module].split, operations[call.operation]
            if split and call.phase == Phase.FORWARD and operation.operations:
                sizes[_summed_bytes(split, operation.shapes, operation.dtype)] += 1
        return {size: count for size, count in sizes.items() if size}

    @cached_property
    def _attention_bytes(self) -> float:
        """The bytes of keys and values of one measured step: about half of what attention reads and writes."""
        operations = self._measurement.operations
        counts = Counter(call.operation for call in self._measurement.calls if call.phase == Phase.FORWARD)
        sizes = [
            operations[index].moved_bytes * count
            for index, count in counts.items()
            if "attention" in operations[index].name
        ]
        return sum(sizes) / 2


def _sum(*parts: Exchange) -> Exchange:
    return Exchange(sum(part.exposed for part in parts), sum(part.work for part in parts))


def _summed_bytes(split: str, shapes: tuple[tuple[int, ...], ...], dtype: str) -> float:
    """Return the bytes that ranks sum for a product of matrices in a module that is split so, 0 for anything else."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if len(matrices) < 2:
        return 0.0
    left, right = matrices[-2:]
    elements = math.prod(left) if split == "column" else math.prod(left[:-1]) * right[-1]
    return float(elements * (2 if "16" in dtype else 4))
