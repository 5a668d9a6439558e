"""Predicts memory, time and money of one layout on a set of hosts.

    predictor = Predictor(measurement, hosts)                   # aggregates the measurement once
    predictor.planned({"torch_distributed": {"enabled": True}}).step.seconds

`search` asks the same predictor for many layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from herringbone_contract.distribution import Distribution, parse
from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Memory, Prediction, Range, StepTime
from herringbone_contract.prediction.question import Hosts, Work
from herringbone_contract.rules import check_layout
from herringbone_contract.served import Library as Source
from herringbone_contract.served import unserved
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.core.prediction.layout import Layout, layout_of
from herringbone_parallel.core.prediction.measurement import Measurement, Timings
from herringbone_parallel.core.prediction.memory import MemoryModel
from herringbone_parallel.core.prediction.stages import Stages
from herringbone_parallel.core.prediction.step_time import StepModel

# A predicted peak above the device's memory by less than the error of the prediction is a warning, not a refusal.
TOLERANCE = 1.05
_GIB = 1 << 30
_SECONDS_OF_HOUR = 3600.0


class Predictor:
    """Predictions of one measured step on some hosts; what does not depend on the layout is computed once.

    `timings` serve hosts whose device has their name. A search may take partitions that are `good_enough`: proven to
    cost at most this fraction more than the best. `memory` and `steps` replace the models in tests.
    """

    def __init__(
        self,
        measurement: Measurement,
        hosts: Hosts,
        timings: Timings | None = None,
        *,
        good_enough: float = 0.0,
        memory: MemoryModel | None = None,
        steps: StepModel | None = None,
    ) -> None:
        self.measurement, self.hosts = measurement, hosts
        # Memory and time are those of the same partition.
        stages = Stages(measurement, good_enough)
        self._memory = memory or MemoryModel(measurement, stages)
        self._steps = steps or StepModel(measurement, hosts, timings, stages)

    def planned(self, distribution: Mapping[str, Any], *, work: Work | None = None, scale: float = 1.0) -> Prediction:
        """Return the prediction of the dict as the user wrote it; a dict that cannot run has a refusal.

        predictor.planned({"torch_distributed": {"enabled": True}}, work=Work(steps=1000))
        """
        try:
            layout = layout_on(self.hosts, distribution, self.measurement)
        except (DistributionError, ParallelError) as error:
            return refused(self.hosts, distribution, str(error))
        return self.of_layout(layout, distribution, work=work, scale=scale, planned=True)

    def of_layout(
        self,
        layout: Layout,
        distribution: Mapping[str, Any],
        *,
        work: Work | None = None,
        scale: float = 1.0,
        planned: bool = False,
        step: StepTime | None = None,
    ) -> Prediction:
        """Return the prediction of a layout; it is refused where its peak exceeds the device's memory.

        The layout that a job is `planned` with has `TOLERANCE`, and the time of its ranks if they ran on this machine.
        `step` is the time of a step where the caller knows it already, by `step_time`.
        """
        hosts, scaled = self.hosts, replace(layout, batch_scale=layout.batch_scale * scale)
        try:
            memory = self._memory.memory(scaled, "cpu" if hosts.cores is not None else "cuda")
            held = held_bytes(memory, hosts, layout)
            refusal = _refusal(held, hosts, TOLERANCE if planned else 1.0)
            if step is None and refusal is None:
                step = (self._steps.planned if planned else self._steps.step_time)(scaled)
        except (DistributionError, ParallelError) as error:
            return refused(hosts, distribution, str(error), layout.mesh)
        prediction = Prediction(
            hosts=hosts.name,
            count=hosts.count,
            distribution=dict(distribution),
            mesh=layout.mesh._asdict(),
            memory=memory,
            device_bytes=_device_bytes(hosts),
            refusal=refusal,
        )
        if refusal is not None or step is None:
            return prediction
        prediction = _with_time(prediction, step, scaled, hosts, work, self.measurement)
        reasons = _reasons(held / hosts.device.memory_bytes, step)
        return msgspec.structs.replace(prediction, reasons=reasons)

    def step_time(self, layout: Layout) -> StepTime:
        """Return the seconds of a step, whether it fits or not."""
        return self._steps.step_time(layout)


def layout_on(hosts: Hosts, distribution: Mapping[str, Any], measurement: Measurement) -> Layout:
    """Return the layout of a dict on these hosts, by the rules that `plan` checks.

    Raises `DistributionError` or `ParallelError` for a dict that these hosts, our library or the script cannot run.
    """
    parsed = parse(distribution)
    _check_served(parsed)
    check_layout(parsed, hosts=hosts.count, processes_per_host=hosts.ranks_per_host)
    return layout_of(parsed, hosts.count * hosts.ranks_per_host, measurement)


def refused(hosts: Hosts, distribution: Mapping[str, Any], reason: str, mesh: Mesh | None = None) -> Prediction:
    """Return the prediction of a dict that cannot run, for this reason."""
    return Prediction(
        hosts=hosts.name,
        count=hosts.count,
        distribution=dict(distribution),
        mesh={} if mesh is None else mesh._asdict(),
        refusal=reason,
    )


def _check_served(distribution: Distribution) -> None:
    for path, reason in unserved(distribution, Source.HERRINGBONE, "pytorch").items():
        raise DistributionError(f"{path}: {reason}")


def held_bytes(memory: tuple[Memory, ...], hosts: Hosts, layout: Layout) -> int:
    """Return the bytes on the fullest device: those of all ranks that share it."""
    peaks = [part.peak for part in memory]
    sharing = _sharing(hosts)
    if sharing == 1 or len(peaks) == 1:
        return max(peaks) * sharing
    # Ranks of several partitions share a device, and the partitions differ.
    grid = Grid(layout.mesh, layout.placement)
    held: dict[tuple[int, int], int] = {}
    for rank in range(grid.world_size):
        host, local = divmod(rank, hosts.ranks_per_host)
        device = host, local % hosts.devices
        held[device] = held.get(device, 0) + peaks[grid.coordinates(rank)["P"]]
    return max(held.values())


def _sharing(hosts: Hosts) -> int:
    """Return the number of ranks on the fullest device of a host."""
    return -(-hosts.ranks_per_host // hosts.devices)


def _device_bytes(hosts: Hosts) -> int:
    """Return the memory that a rank may use: ranks that share a device share its memory."""
    return hosts.device.memory_bytes // _sharing(hosts)


def _refusal(held: int, hosts: Hosts, tolerance: float) -> str | None:
    there = hosts.device.memory_bytes
    if held <= there * tolerance:
        return None
    sharing = _sharing(hosts)
    ranks = f"{sharing} ranks on {hosts.device.name} need" if sharing > 1 else f"a rank needs {hosts.device.name} with"
    return f"{ranks} {held / _GIB:.1f} GiB at the peak, and there are {there / _GIB:.1f} GiB"


def _with_time(
    prediction: Prediction, step: StepTime, layout: Layout, hosts: Hosts, work: Work | None, measurement: Measurement
) -> Prediction:
    samples = samples_of_step(layout, measurement)
    seconds = _job_seconds(step.seconds, samples, work or Work())
    dollars = None
    if seconds is not None and hosts.dollars_per_hour is not None:
        dollars = _times(seconds, hosts.dollars_per_hour * hosts.count / _SECONDS_OF_HOUR)
    return msgspec.structs.replace(
        prediction,
        step=step,
        samples_per_second=None if samples is None else samples / step.seconds.expected,
        seconds=seconds,
        dollars=dollars,
    )


def samples_of_step(layout: Layout, measurement: Measurement) -> float | None:
    """Return the samples of one step of all ranks; None where the measurement could not tell them."""
    if measurement.batch is None:
        return None
    return measurement.batch * layout.batch_scale * layout.mesh.batches


def _job_seconds(step: Range, samples: float | None, work: Work) -> Range | None:
    steps: float | None = work.steps
    if steps is None and work.samples is not None and samples:
        steps = max(1.0, work.samples / samples)
    if steps is None:
        return None
    whole = _times(step, steps)
    start = work.start_seconds
    return Range(low=whole.low + start, expected=whole.expected + start, high=whole.high + start)


def _times(estimate: Range, factor: float) -> Range:
    return Range(low=estimate.low * factor, expected=estimate.expected * factor, high=estimate.high * factor)


def _reasons(share: float, step: StepTime) -> tuple[str, ...]:
    """Return the reasons of a step's bounds, and what the peak means as a `share` of the device's memory."""
    reasons = list(step.reasons)
    if share > 1.0:
        reasons.append(
            f"the peak is {share - 1:.0%} above the device's memory, which is within the error of the prediction"
        )
    elif share > 1.0 / TOLERANCE:
        reasons.append(f"the peak is {share:.0%} of the device's memory, so the job may run out of memory")
    return tuple(reasons)
