"""Estimates the seconds that a measured step computes: by the device's figures, and by timed steps.

    costs = Costs(measurement, device, timings)
    work = costs.work(partition)            # arrays: one entry for each partition
    work.seconds(Part.FORWARD, scale=2.0)

An operation costs the time to start it, plus the larger of its arithmetic and its memory traffic (the roofline model).
The first part does not grow with the batch. A GPU runs operations while the processor starts later ones, so there the
larger of both sums counts; on a CPU both add up.

Timed steps say how long all calls of a module take together, in the forward and in the backward. The device's figures
divide that among the calls.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from herringbone_contract.prediction.devices import Device
from herringbone_contract.prediction.question import Hosts
from herringbone_parallel.core.prediction.measurement import Measurement, Operation, Phase, Timings, nearest
from herringbone_parallel.core.prediction.shards import units_of_modules
from herringbone_parallel.core.prediction.sharing import divided_calls, splits_of_modules
from herringbone_parallel.core.prediction.stages import Partition

Array = NDArray[np.float64]


class Part(IntEnum):
    """A part of a step's work. `AGAIN` is the forward of checkpointed modules, which a layout may run twice."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    AGAIN = 3


class _Growth(IntEnum):
    """The dependence of an operation's busy time on the layout."""

    # On parameters alone.
    FIXED = 0
    # With the samples of the rank.
    SAMPLES = 1
    # With the samples, divided by the ranks that share the layer.
    SHARED = 2
    # As SAMPLES, outside of the layers that ranks share.
    OUTSIDE = 3


_PARTS = {
    Phase.FORWARD: Part.FORWARD,
    Phase.RECOMPUTE: Part.BACKWARD,
    Phase.BACKWARD: Part.BACKWARD,
    Phase.BETWEEN: Part.OPTIMIZER,
    Phase.OPTIMIZER: Part.OPTIMIZER,
}
# An operation that a program of matrices or convolutions spends its arithmetic in; float32 ones may run as tf32.
_CONVOLUTION = "convolution"
# Seconds by which nothing is divided.
_LEAST = 1e-12
_NO_SCALE = (Phase.BETWEEN, Phase.OPTIMIZER)


class Work:
    """The seconds of a step by partition.

    `started` and `busy` are indexed by part, growth and partition: the processor's time to start operations, and the
    time in which the device computes.
    """

    def __init__(self, started: Array, busy: Array, *, overlapped: bool) -> None:
        self._started, self._busy, self._overlapped = started, busy, overlapped

    def seconds(
        self, part: Part, *, scale: float = 1.0, share: int = 1, batches: int = 1, passes: float = 1.0
    ) -> Array:
        """Return the seconds of each partition.

        `scale` is the samples of a step divided by the measured ones, `share` the ranks that share a layer, `batches`
        those that these ranks read for it, `passes` the number of passes in a step divided by the measured one.
        """
        fixed, samples, shared, outside = self._busy[part]
        # Outside of the layers a rank computes on its own batch alone.
        busy = passes * fixed + scale * (samples + shared / share + outside / batches)
        started = passes * self._started[part].sum(axis=0)
        seconds: Array = np.maximum(busy, started) if self._overlapped else busy + started
        return seconds


class Costs:
    """The seconds of each call of a measured step on one device."""

    def __init__(self, measurement: Measurement, device: Device, timings: Timings | None = None) -> None:
        self._calls = len(measurement.calls)
        # An operation on a GPU only enters a queue.
        self.overlapped = timings is None and not device.name.lower().startswith("cpu")
        operations = measurement.operations
        indices = np.array([call.operation for call in measurement.calls], dtype=np.int64)
        phases = np.array([call.phase for call in measurement.calls], dtype=np.int64)
        moved = np.array([one.moved_bytes > 0 or one.operations > 0 for one in operations], dtype=bool)
        self.starts: Array = np.full(len(indices), device.call_seconds) * (moved[indices] if self.overlapped else 1.0)
        self.busy: Array = np.array([_roofline(operation, device) for operation in operations])[indices]
        self.parts = np.array([_PARTS.get(Phase(phase), -1) for phase in phases], dtype=np.int64)
        if timings is not None:
            factors = _factors(measurement, timings, self.parts, self.starts + self.busy)
            self.starts, self.busy = self.starts * factors, self.busy * factors
        self.growth = _growths(measurement, indices, phases)
        self.again = _again(measurement)[np.array([call.module for call in measurement.calls], dtype=np.int64)]
        self.again &= phases == Phase.FORWARD

    def work(self, partition: Partition) -> Work:
        """Return the work of each partition; what belongs to no single one is divided by their parameters' bytes."""
        count = partition.count
        shape = (len(Part), len(_Growth), count)
        started, busy = np.zeros(shape), np.zeros(shape)
        homes = partition.calls
        for rows, parts in ((self.parts >= 0, self.parts), (self.again, np.full_like(self.parts, Part.AGAIN))):
            known = rows & (homes >= 0)
            cells = (parts[known] * len(_Growth) + self.growth[known]) * count + homes[known]
            for total, seconds in ((started, self.starts), (busy, self.busy)):
                total += np.bincount(cells, weights=seconds[known], minlength=total.size).reshape(shape)
        # Work of no single partition is the optimizer's over all parameters.
        rest = (self.parts >= 0) & (homes < 0)
        if rest.any():
            cells = self.parts[rest] * len(_Growth) + self.growth[rest]
            for total, seconds in ((started, self.starts), (busy, self.busy)):
                sums = np.bincount(cells, weights=seconds[rest], minlength=len(Part) * len(_Growth))
                total += sums.reshape(shape[:2])[..., None] * _part_of_parameters(partition)
        return Work(started, busy, overlapped=self.overlapped)


def _roofline(operation: Operation, device: Device) -> float:
    rates = device.operations_per_second
    dtype = operation.dtype
    if dtype == "float32" and _CONVOLUTION in operation.name and "tf32" in rates:
        dtype = "tf32"
    rate = rates.get(dtype) or rates.get("float32") or max(rates.values())
    busy = max(operation.operations / rate, operation.moved_bytes / device.bytes_per_second)
    return busy / device.fraction


def _factors(measurement: Measurement, timings: Timings, parts: NDArray[np.int64], estimated: Array) -> Array:
    """Return for each call the timed seconds of its module's calls, divided by the estimated ones.

    Calls of a part take its timed seconds in all.
    """
    modules = np.array([call.module for call in measurement.calls], dtype=np.int64)
    factors = np.ones(len(modules))
    for part, part_s in enumerate((timings.forward_s, timings.backward_s, timings.optimizer_s)):
        own = parts == part
        if part != Part.OPTIMIZER:
            paths = (timings.modules.get(module.path) for module in measurement.modules)
            timed = np.array([0.0 if seconds is None else seconds[part] for seconds in paths])
            of_modules = np.bincount(modules[own], weights=estimated[own], minlength=len(timed))
            # A module of which nothing was timed is not free: its calls keep their part of the estimate.
            ratios = timed / np.maximum(of_modules, _LEAST)
            common = timed.sum() / max(of_modules.sum(), _LEAST)
            factors[own] = np.where(ratios > 0, ratios, common or 1.0)[modules[own]]
        total = float((estimated * factors)[own].sum())
        factors[own] *= part_s / max(total, _LEAST)
    return factors


def _growths(measurement: Measurement, indices: NDArray[np.int64], phases: NDArray[np.int64]) -> NDArray[np.int64]:
    parameters = {parameter.shape for parameter in measurement.parameters} | {
        parameter.shape[::-1] for parameter in measurement.parameters
    }
    # An operation whose tensors all have a parameter's shape, such as the addition of two gradients.
    alike = np.array([_on_parameters(operation, parameters) for operation in measurement.operations], dtype=bool)
    modules = np.array([call.module for call in measurement.calls], dtype=np.int64)
    growth = np.where(_around_shared(measurement)[modules], _Growth.SAMPLES, _Growth.OUTSIDE)
    growth = np.where(_shared(measurement), _Growth.SHARED, growth)
    return np.where(alike[indices] | np.isin(phases, _NO_SCALE), _Growth.FIXED, growth)


def _on_parameters(operation: Operation, parameters: set[tuple[int, ...]]) -> bool:
    shapes = [shape for shape in operation.shapes if shape]
    return bool(shapes) and all(shape in parameters for shape in shapes) and not operation.operations


def _shared(measurement: Measurement) -> NDArray[np.bool_]:
    """Return True for calls that tensor parallelism divides: of layers that ranks share, and between two of those."""
    splits = splits_of_modules(measurement)
    of_layers = np.array([splits[call.module] != "" for call in measurement.calls], dtype=np.bool_)
    return np.asarray(of_layers | divided_calls(measurement))


def _around_shared(measurement: Measurement) -> NDArray[np.bool_]:
    """Return True for modules of the units, such as transformer layers, that have a split module."""
    modules = measurement.modules
    units = units_of_modules(measurement)
    splits = np.array([bool(module.split) for module in modules], dtype=np.bool_)
    has_splits = np.bincount(units, weights=splits, minlength=len(modules)) > 0
    # What is in no unit is in the root's.
    around: NDArray[np.bool_] = has_splits[units] & (units > 0)
    return around


def _again(measurement: Measurement) -> NDArray[np.bool_]:
    """Return True for modules below one whose forward may be run again."""
    found = nearest(measurement, lambda module: module.checkpoint)
    return np.array([number is not None for number in found], dtype=bool)


def _part_of_parameters(partition: Partition) -> Array:
    counts = np.bincount(partition.parameters, minlength=partition.count).astype(np.float64)
    return counts / counts.sum() if counts.sum() else np.full(partition.count, 1 / partition.count)


def ready_times(measurement: Measurement, costs: Costs) -> list[tuple[int, float]]:
    """Return trained parameters in the order of their gradients, with the part of the backward that is over by then."""
    modules = np.array([call.module for call in measurement.calls], dtype=np.int64)
    backward = costs.parts == Part.BACKWARD
    until = np.cumsum(np.where(backward, costs.starts + costs.busy, 0.0))
    total = float(until[-1]) if len(until) else 0.0
    # The last call of each module in the backward: numpy keeps the last of several assignments.
    last = np.full(len(measurement.modules), total)
    last[modules[backward]] = until[backward]
    ready = [
        (index, float(last[parameter.module]) / total if total else 1.0)
        for index, parameter in enumerate(measurement.parameters)
        if parameter.trainable
    ]
    return sorted(ready, key=lambda pair: pair[1])


def threads_of(hosts: Hosts, timings: Timings | None) -> int:
    """Return the threads of one rank of hosts without GPUs."""
    if timings is not None:
        return timings.threads
    return max(1, (hosts.cores or 1) // hosts.ranks_per_host)


def device_of_rank(hosts: Hosts) -> Device:
    """Return the device with the rates that one rank reaches: the figures of a processor are those of all its cores."""
    if hosts.cores is None:
        return hosts.device
    part = threads_of(hosts, None) / hosts.cores
    rates = {dtype: rate * part for dtype, rate in hosts.device.operations_per_second.items()}
    return msgspec.structs.replace(
        hosts.device, operations_per_second=rates, bytes_per_second=hosts.device.bytes_per_second * part
    )
