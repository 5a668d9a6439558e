"""Predicts the seconds of a training step for any layout on some hosts.

    model = StepModel(measurement, hosts, timings, stages)
    model.step_time(layout).seconds.expected

[1] Each rank computes forward, backward and optimizer step of its own partition, divided by the ranks that share it.
[2] Ranks exchange data. What computation hides costs nothing on a GPU.
[3] Ranks of a host without GPUs share its cores, for messages as well, so a host's work takes at least its processor
    time divided by its cores. Ranks that exchange data wait at the same moments: no other rank computes meanwhile, so
    their waits add to that work, and they are as many times longer.
[4] The stages of a pipeline wait for each other, as the simulator of the runtime's schedules says. Every rank runs the
    script's Python for every microbatch, keeps a tape of its calls, and sends and receives values: the runtime's work.
[5] A batch that nobody prepares in advance is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from herringbone_contract.distribution import parse
from herringbone_contract.prediction.answer import Range, StepTime
from herringbone_contract.prediction.question import QUIET_SLOWDOWN, Hosts
from herringbone_parallel.core.pipeline.simulate import Link as PipelineLink
from herringbone_parallel.core.pipeline.simulate import Segment, simulate
from herringbone_parallel.core.prediction.communication import Links
from herringbone_parallel.core.prediction.compute import Array, Costs, Part, Work, device_of_rank, threads_of
from herringbone_parallel.core.prediction.exchange import Exchange, Exchanges, Seconds
from herringbone_parallel.core.prediction.layout import Layout, Library, layout_of
from herringbone_parallel.core.prediction.measurement import Measurement, Phase, Timings
from herringbone_parallel.core.prediction.sharing import Elements
from herringbone_parallel.core.prediction.stages import Partition, Stages

# The part of a backward that computes gradients of parameters, which zero_bubble runs later: about half, because a
# layer multiplies once for its input and once for its weight.
_WEIGHT_PART = 0.5
# The work of a pipeline's runtime, as small pipelines show it: of a step, a microbatch, a call that every rank sees,
# and a value at each of its ends, with the gradient that comes back.
_STEP_S, _MICROBATCH_S, _CALL_S, _VALUE_S = 8e-4, 2e-4, 6e-5, 1.05e-3
# The bounds by the origin of the figures, as parts of the expected time.
_TIMED, _FROM_TABLE, _CPU_TABLE, _MESSAGES = 0.10, 0.35, 0.6, 0.3


class _Pipeline(NamedTuple):
    """A pipeline to simulate: the way of each microbatch, the link between its ranks, and the cores that they have.

    Layouts that differ in their shards alone have equal ones.
    """

    segments: tuple[Segment, ...]
    microbatches: int
    schedule: str
    active: int
    link: PipelineLink
    cores: float

    def step_s(self) -> float:
        """Return the seconds of the forwards and backwards, by the simulator."""
        programs = [self.segments] * self.microbatches
        return simulate(programs, pipeline=self.schedule, active=self.active, link=self.link, cores=self.cores).step_s


class _Runtime(NamedTuple):
    """Processor seconds of the pipeline's runtime: of a step, and of a microbatch on a rank of each partition."""

    step_s: float
    microbatch_s: Array


class StepModel:
    """Predicts step times from one measured step; what depends on the measurement alone is computed once.

        StepModel(measurement, hosts).step_time(layout)

    `timings` count for hosts whose device has the same name as the timed one.
    """

    def __init__(
        self, measurement: Measurement, hosts: Hosts, timings: Timings | None = None, stages: Stages | None = None
    ) -> None:
        self._measurement, self._hosts = measurement, hosts
        self._timings = timings if timings is not None and timings.device == hosts.device.name else None
        self._stages = stages or Stages(measurement)
        device = hosts.device if self._timings is not None else device_of_rank(hosts)
        self._costs = Costs(measurement, device, self._timings)
        # By the number of partitions and the assignment, as below.
        self._works: dict[tuple[int, int], Work] = {}
        self._ways: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self._simulated: dict[_Pipeline, float] = {}
        self._elements = Elements(measurement)
        self._exchanges = Exchanges(measurement, self._costs)

    def planned(self, layout: Layout) -> StepTime:
        """Return the seconds of a step of the job's layout: as its ranks took it here, and scaled for other batches."""
        estimated, hosts = self.step_time(layout), self._hosts
        job = None if self._timings is None else self._timings.job
        if job is None or hosts.count * hosts.ranks_per_host != job.ranks:
            return estimated
        own = layout_of(parse(job.distribution), job.ranks, self._measurement)
        if replace(own, batch_scale=layout.batch_scale) != layout:
            return estimated
        factor = job.seconds / self.step_time(own).seconds.expected
        low, step, high = (factor * seconds for seconds in msgspec.structs.astuple(estimated.seconds))
        data = factor * estimated.data
        compute = min(estimated.compute, step - data)
        communication = min(factor * estimated.communication, step - data - compute)
        return StepTime(
            seconds=Range(low=low, expected=step, high=high),
            compute=compute,
            communication=communication,
            idle=step - data - compute - communication,
            data=data,
            reasons=estimated.reasons,
        )

    def step_time(self, layout: Layout) -> StepTime:
        """Return the seconds of a step, with bounds and their reasons."""
        partition, hosts, timings = self._stages.of(layout), self._hosts, self._timings
        links = Links(hosts, layout, timings)
        seconds = self._seconds(layout, partition)
        exchange = self._exchanges.of(layout, partition, seconds, links)
        runtime, slow = _runtime(partition, timings if links.on_cores else None), _slowdown(layout, hosts, timings)
        if partition.count > 1:
            each_way = layout.microbatches * runtime.microbatch_s / 2
            passes = seconds._replace(forward=seconds.forward + each_way, backward=seconds.backward + each_way)
            step = self._pipeline_s(self._pipeline(layout, partition, passes, links))
            step += (exchange.exposed + runtime.step_s) * slow
            step += max(float(seconds.optimizer.max()), float(seconds.optimizer.mean()) * slow)
        else:
            step = (float(seconds.total.max()) + exchange.exposed) * slow
        if links.on_cores:
            # [3]
            runtime_s = runtime.step_s + layout.microbatches * float(runtime.microbatch_s.mean())
            step = max(step, (float(seconds.total.mean()) + exchange.work + runtime_s) * slow)
        compute, data = float(seconds.total.max()), self._data_s(layout, step, slow)
        low, high, reasons = self._bounds(layout, exchange, step, links)
        communication = min(exchange.work if links.on_cores else exchange.exposed, step)
        return StepTime(
            seconds=Range(low=(step + data) * low, expected=step + data, high=(step + data) * high),
            compute=min(compute, step),
            communication=min(communication, max(0.0, step - compute)),
            idle=max(0.0, step - compute - communication),
            data=data,
            reasons=reasons,
        )

    def _work(self, partition: Partition) -> Work:
        key = (partition.count, partition.assignment)
        if key not in self._works:
            self._works[key] = self._costs.work(partition)
        return self._works[key]

    def _seconds(self, layout: Layout, partition: Partition) -> Seconds:
        """Return the work of one rank of each partition [1]."""
        work, mesh = self._work(partition), layout.mesh
        passes = layout.microbatches / self._measurement.microbatches
        # The ranks of a context have a part of each sequence.
        scale = layout.batch_scale / mesh.context
        batches = layout.batches // mesh.batches
        forward, backward, again = (
            work.seconds(part, scale=scale, share=mesh.tensor, batches=batches, passes=passes)
            for part in (Part.FORWARD, Part.BACKWARD, Part.AGAIN)
        )
        optimizer = work.seconds(Part.OPTIMIZER) * self._updated_part(layout) / mesh.tensor
        return Seconds(forward, backward + again if layout.checkpointing else backward, optimizer)

    def _updated_part(self, layout: Layout) -> float:
        """Return the part of a partition's parameters that one of the ranks updates that share it."""
        mesh = layout.mesh
        if layout.library is not Library.VERSION1:
            return 1 / (mesh.shard * mesh.context)
        if layout.shard_optimizer_state:
            return 1 / mesh.data
        elements = self._elements.of_rank(mesh.tensor)
        divided = elements[elements >= layout.limits.whole].sum() / max(1.0, elements.sum())
        return float(divided / mesh.shard + 1 - divided)

    def _pipeline_s(self, pipeline: _Pipeline) -> float:
        """Return the seconds of a pipeline [4], each simulated once."""
        if pipeline not in self._simulated:
            self._simulated[pipeline] = pipeline.step_s()
        return self._simulated[pipeline]

    def _pipeline(self, layout: Layout, partition: Partition, seconds: Seconds, links: Links) -> _Pipeline:
        group, hosts = links.group("P"), self._hosts
        segments = self._segments(layout, partition, seconds, links)
        cores = np.inf
        if hosts.cores is not None:
            threads = threads_of(hosts, self._timings)
            # The other pipelines of a host have the same work, so each gets its part of the cores.
            cores = hosts.cores / threads * group.local / hosts.ranks_per_host * group.hosts
        link = group.outside if group.hosts > 1 else group.inside
        return _Pipeline(
            tuple(segments),
            layout.microbatches,
            layout.pipeline,
            layout.active,
            PipelineLink() if links.on_cores else PipelineLink(link.latency_s, link.bytes_per_second),
            float(cores),
        )

    def _segments(self, layout: Layout, partition: Partition, seconds: Seconds, links: Links) -> Iterator[Segment]:
        group = links.group("P")
        way = self._way(partition)
        visits = np.bincount([rank for rank, _ in way], minlength=partition.count)
        forward, backward = seconds.forward / layout.microbatches, seconds.backward / layout.microbatches
        for position, (rank, part) in enumerate(way):
            after = way[position + 1][0] if position + 1 < len(way) else None
            into = sum(message.forward_bytes for message in partition.messages if message.target == after)
            size = 0 if after is None else into // max(1, int(visits[after]))
            # Where messages take the time of cores, the sender computes them.
            own_s = group.send_s(size) if links.on_cores and size else 0.0
            yield Segment(
                rank=rank,
                forward_s=float(forward[rank]) * part + own_s,
                backward_s=float(backward[rank]) * part + own_s,
                weight_s=float(backward[rank]) * part * _WEIGHT_PART if layout.pipeline == "zero_bubble" else 0.0,
                sent_bytes=size,
            )

    def _way(self, partition: Partition) -> list[tuple[int, float]]:
        """Return the partitions that a forward passes, each with its part of the work that its rank does in a forward.

        A visit may have few calls and much work: that of a head next to those of the embedding that it shares.
        """
        key = (partition.count, partition.assignment)
        if key not in self._ways:
            seconds = np.where(self._first_forward, self._costs.starts + self._costs.busy, 0.0)
            homes = np.array([visit.partition for visit in partition.visits], dtype=np.int64)
            works = np.array([seconds[visit.start : visit.end].sum() for visit in partition.visits])
            of_ranks = np.bincount(homes, weights=works, minlength=partition.count)
            parts = works / np.maximum(of_ranks[homes], np.finfo(np.float64).tiny)
            self._ways[key] = list(zip(homes.tolist(), parts.tolist(), strict=True)) or [(0, 1.0)]
        return self._ways[key]

    def _data_s(self, layout: Layout, step_s: float, slow: float) -> float:
        """Return the wait for a batch [5]: workers prepare it during the step before, as fast as they are many.

        Ranks without workers prepare theirs at the same time.
        """
        batch_s = self._measurement.data_seconds * layout.batch_scale * layout.mesh.batches / layout.batches
        workers = self._measurement.data_workers
        return max(0.0, batch_s / workers - step_s) if workers else batch_s * slow

    def _bounds(
        self, layout: Layout, exchange: Exchange, step_s: float, links: Links
    ) -> tuple[float, float, tuple[str, ...]]:
        """Return the bounds, as factors of the expected time, and their reasons."""
        hosts, timings, name = self._hosts, self._timings, self._hosts.device.name
        if timings is not None:
            spread = _TIMED
            reasons = [f"whole steps of the script were timed on {name}"]
        elif hosts.cores is not None:
            spread = _CPU_TABLE
            reasons = [f"the speed of {name} comes from peak rates, which say little about processors"]
        else:
            spread = _FROM_TABLE
            fraction = hosts.device.fraction
            reasons = [f"operations are supposed to reach {fraction:.0%} of the peak rates of {name}"]
        part = min(1.0, exchange.work / step_s) if step_s else 0.0
        if part > 0.05:
            spread += _MESSAGES * part
            reasons.append(
                f"messages between ranks take {part:.0%} of a step, as far as computation does not hide them"
            )
        if links.supposed:
            spread += _MESSAGES * part
            reasons.append(f"the network of {hosts.name} is not known: 10 Gbit/s are supposed")
        slow = _slowdown(layout, hosts, timings)
        if slow > 1:
            reasons.append(f"{hosts.ranks_per_host} ranks share {hosts.cores} cores of a host: they take turns")
        spread = min(0.9, spread)
        low, high = 1 - spread, 1 + spread
        if timings is not None and timings.slowdown > QUIET_SLOWDOWN:
            # Threads may have a part of the time of one; and who computes beside others has a part of the caches.
            low, high = low / max(2, timings.threads), high * timings.slowdown
            reasons.append(
                f"other programs used this machine while steps were timed, which took {timings.slowdown:.3g} times"
                " as long by the clock: the bounds are those of a quiet machine, and of one as busy as then"
            )
        return low, high, tuple(reasons)

    @cached_property
    def _first_forward(self) -> NDArray[np.bool_]:
        """The calls of the first microbatch's forward."""
        calls = self._measurement.calls
        return np.array([call.phase == Phase.FORWARD and call.microbatch == 0 for call in calls], dtype=bool)


def _runtime(partition: Partition, timings: Timings | None) -> _Runtime:
    """Return the work of the pipeline's runtime [4]; none for ranks of unknown speed."""
    if partition.count == 1 or timings is None:
        return _Runtime(0.0, np.zeros(partition.count))
    ends = np.array([(message.source, message.target) for message in partition.messages], dtype=np.int64)
    values: Array = np.bincount(ends.ravel(), minlength=partition.count).astype(np.float64)
    return _Runtime(_STEP_S, _MICROBATCH_S + partition.seen * _CALL_S + values * _VALUE_S)


def _slowdown(layout: Layout, hosts: Hosts, timings: Timings | None) -> float:
    """Return the factor by which ranks are slower that share the cores of a host [3]."""
    if hosts.cores is None:
        return 1.0
    ranks = min(hosts.ranks_per_host, -(-layout.mesh.ranks // hosts.count))
    return max(1.0, ranks * threads_of(hosts, timings) / hosts.cores)
