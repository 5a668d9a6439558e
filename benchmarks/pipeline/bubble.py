"""Measure the idle time of a pipeline's ranks, and compare with theory and the simulator. Stages sleep, not compute.

Usage: python benchmarks/pipeline/bubble.py [--partitions 2 4 8] [--microbatches 4 8 32] [--pipelines interleaved
       simple zero_bubble] [--forward-ms 50] [--repeats 5] [--timelines FOLDER]
The last line is JSON: for each case the measured idle fraction and its limit (p - 1) / (m + p - 1) + 0.02 (for
zero_bubble: that of the simulator where the runtime takes no time, + 0.02), and the step in seconds as measured and as
predicted from a run of 4 microbatches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from ranks import Ranks
from torch import nn

import herringbone_parallel.torch.model_parallel.api as smp
from herringbone_parallel.core.pipeline.simulate import Link, Segment, Simulation, simulate
from herringbone_parallel.core.pipeline.trace import Event, read_trace, side_by_side, write_trace

MARGIN = 0.02
ROWS, WIDTH = 4, 256
# Half of a backward computes the gradients of parameters.
BACKWARD_OVER_FORWARD = 2
WARM_UP, WARM_UP_FORWARD_S = 2, 0.001
CALIBRATION_MICROBATCHES, CALIBRATION_REPEATS = 4, 5
# Calibration only uses stages whose message came clearly before or clearly after the rank was free.
LONGEST_MESSAGE_S = 0.005


class Step(NamedTuple):
    """One measured step: the times of each rank's call and return, and the ranks' events, by one clock."""

    called_s: list[float]
    returned_s: list[float]
    events: list[Event]

    @property
    def seconds(self) -> float:
        """Seconds from rank 0's call, at which the pipeline starts to fill, to the last rank's return."""
        return max(self.returned_s) - self.called_s[0]


class _Rest(torch.autograd.Function):
    """Returns its input in forward and its gradient in backward, and sleeps in both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, stage: Stage, takes_s: float) -> torch.Tensor:
        ctx.stage = stage
        return _rest(x.view_as(x), takes_s)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _rest(gradient, ctx.stage.forward_s), None, None


def _rest(result: torch.Tensor, seconds: float) -> torch.Tensor:
    if seconds:
        time.sleep(seconds)
    return result


class Stage(nn.Module):
    """A stage that sleeps `forward_s` in forward, and in backward `forward_s` each for its input and its parameter."""

    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.forward_s = forward_s
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Rest.apply(x, self, self.forward_s) * _Rest.apply(self.scale, self, 0.0)


def run_steps(partitions: int, microbatches: int, forward_s: float, repeats: int) -> list[tuple[float, float]]:
    """Run the steps on a rank. Return the times of each step's call and return."""
    stages = []
    for rank in range(partitions):
        with smp.partition(rank):
            stages.append(Stage(WARM_UP_FORWARD_S))
    model = smp.DistributedModel(nn.Sequential(*stages))

    @smp.step
    def train(inputs: torch.Tensor) -> torch.Tensor:
        loss = model(inputs).mean()
        model.backward(loss)
        return loss

    # The first stage's input needs a gradient too, so that all stages take the same time.
    inputs = torch.ones(microbatches * ROWS, WIDTH, requires_grad=True)
    times = []
    for count in range(WARM_UP + repeats):
        if count == WARM_UP:
            stages[smp.pp_rank()].forward_s = forward_s
        dist.barrier()
        called_s = time.monotonic()
        train(inputs)
        times.append((called_s, time.monotonic()))
    smp.shutdown()  # writes the timeline
    return times[WARM_UP:]


def measure(ranks: Ranks, pipeline: str, shape: tuple[int, int], forward_s: float, repeats: int) -> list[Step]:
    partitions, microbatches = shape
    parameters = {
        "partitions": partitions, "microbatches": microbatches, "pipeline": pipeline,
        "auto_partition": False, "default_partition": 0,
    }  # fmt: skip
    by_rank = ranks.run(run_steps, parameters, partitions, microbatches, forward_s, repeats)
    events: dict[int, list[Event]] = defaultdict(list)
    for event in read_trace(os.environ["SMP_TIMELINE"]):
        events[event.step].append(event)
    return [
        Step([part[0] for part in parts], [part[1] for part in parts], events[number])
        for number, parts in enumerate(zip(*by_rank, strict=True), start=WARM_UP + 1)
    ]


def work_of(step: Step) -> list[Event]:
    """Return the events in which a stage ran, by their start.

    A microbatch has short events too, in which it runs only until it must wait. Keep the longest event of each phase.
    """
    longest: dict[tuple[int, str, int], Event] = {}
    for event in sorted(step.events, key=lambda event: event.end_s - event.start_s):
        longest[event[:3]] = event
    return sorted(longest.values(), key=lambda event: event.start_s)


class Calibration(NamedTuple):
    """The costs in a short run: stages with the runtime's overhead, a message, and the step's start and end."""

    stages: list[Segment]
    link: Link
    around_s: float


def calibrate(steps: list[Step], forward_s: float) -> Calibration:
    """Derive the costs from a few steps.

    - An event whose input was there before its rank was free is late by the runtime's overhead between two events.
    - An event whose rank was free before its input was there is late by that overhead and one message.
    """
    ranks = len(steps[0].called_s)
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    between: dict[str, list[float]] = defaultdict(list)
    waited: list[tuple[str, float]] = []
    around = []
    for step in steps:
        ordered = work_of(step)
        ends = {event[:3]: event.end_s for event in ordered}
        free_at = dict(enumerate(step.called_s))
        around.append(step.seconds - (ordered[-1].end_s - ordered[0].start_s))
        for event in ordered:
            seconds[event.rank, event.phase].append(event.end_s - event.start_s)
            needed = _needed(event, ranks)
            able_s, free_s = ends.get(needed, step.called_s[0]), free_at[event.rank]
            free_at[event.rank] = event.end_s
            if needed[0] == event.rank or able_s < free_s - LONGEST_MESSAGE_S:
                between[event.phase].append(event.start_s - free_s)
            elif able_s > free_s + LONGEST_MESSAGE_S:
                waited.append((event.phase, event.start_s - able_s))
    overhead = {phase: statistics.median(values) for phase, values in between.items()}
    median = {key: statistics.median(values) + overhead[key[1]] for key, values in seconds.items()}
    stages = [
        Segment(rank, median[rank, "forward"], median[rank, "backward"], weight_s=forward_s) for rank in range(ranks)
    ]
    message_s = statistics.median(value - overhead[phase] for phase, value in waited)
    # The first stage already includes the overhead before it.
    return Calibration(stages, Link(latency_s=max(0.0, message_s)), statistics.median(around) - overhead["forward"])


def _needed(event: Event, ranks: int) -> tuple[int, str, int]:
    """Return the rank, phase and microbatch of the event whose result this event needed."""
    if event.phase == "forward":
        return event.rank - 1, "forward", event.microbatch
    if event.rank == ranks - 1:
        return event.rank, "forward", event.microbatch
    return event.rank + 1, "backward", event.microbatch


def theory_of(pipeline: str, shape: tuple[int, int]) -> float:
    """Return the idle fraction for a runtime without overhead: a formula, or the simulator for `zero_bubble`."""
    partitions, microbatches = shape
    if pipeline != "zero_bubble":
        return (partitions - 1) / (microbatches + partitions - 1)
    stages = [Segment(rank, 1, BACKWARD_OVER_FORWARD, weight_s=1) for rank in range(partitions)]
    simulation = simulate([stages] * microbatches, pipeline=pipeline, active=partitions + 2)
    return 1 - microbatches * (1 + BACKWARD_OVER_FORWARD) / simulation.step_s


def compare(
    steps: list[Step], predicted: Simulation, around_s: float, pipeline: str, shape: tuple[int, int], forward_s: float
) -> dict[str, Any]:
    partitions, microbatches = shape
    measured_s = statistics.median(step.seconds for step in steps)
    predicted_s = predicted.step_s + around_s
    theory = theory_of(pipeline, shape)
    # All time without sleep counts as idle, also the runtime's overhead.
    work_s = microbatches * (1 + BACKWARD_OVER_FORWARD) * forward_s
    idle = 1 - work_s / measured_s
    return {
        "pipeline": pipeline,
        "partitions": partitions,
        "microbatches": microbatches,
        "idle": round(idle, 4),
        "theory": round(theory, 4),
        "step_s": round(measured_s, 4),
        # The critical path has m + p - 1 pairs of a forward and a backward: this is the overhead of each pair.
        "overhead_ms": round(1e3 * (measured_s - work_s / (1 - theory)) / (microbatches + partitions - 1), 2),
        "predicted_s": round(predicted_s, 4),
        "predicted_over_measured": round(predicted_s / measured_s, 4),
        "ok": idle <= theory + MARGIN and abs(predicted_s / measured_s - 1) <= 0.03,
    }


def line(case: dict[str, Any], seconds: list[float]) -> str:
    return (
        f"{case['pipeline']:12} {case['partitions']:2} {case['microbatches']:3}   {case['idle']:.3f}"
        f"   {case['theory']:.3f}   {case['step_s']:.4f}  [{min(seconds):.4f} {max(seconds):.4f}]"
        f"   {case['predicted_s']:.4f}   {case['predicted_over_measured']:.3f}   {case['overhead_ms']:.2f}"
        f"  {'' if case['ok'] else 'MISSED'}"
    )


def write_timelines(folder: Path, name: str, step: Step, predicted: Simulation) -> None:
    """Write both timelines, shift the real one to start at zero, and print them side by side."""
    start = step.called_s[0]
    real = [event._replace(start_s=event.start_s - start, end_s=event.end_s - start) for event in step.events]
    simulated = [event for rank in predicted.events for event in rank]
    write_trace(folder / f"{name}-real.json", real, name="real")
    write_trace(folder / f"{name}-predicted.json", simulated, name="predicted")
    print(side_by_side(simulated, real))


def run_cases(ranks: Ranks, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    forward_s = arguments.forward_ms / 1000
    cases = []
    for partitions in arguments.partitions:
        short = measure(ranks, "interleaved", (partitions, CALIBRATION_MICROBATCHES), forward_s, CALIBRATION_REPEATS)
        costs = calibrate(short, forward_s)
        for pipeline, microbatches in product(arguments.pipelines, arguments.microbatches):
            shape = (partitions, microbatches)
            steps = measure(ranks, pipeline, shape, forward_s, arguments.repeats)
            programs = [costs.stages] * microbatches
            predicted = simulate(programs, pipeline=pipeline, active=partitions + 2, link=costs.link)
            case = compare(steps, predicted, costs.around_s, pipeline, shape, forward_s)
            cases.append(case)
            print(line(case, [step.seconds for step in steps]), flush=True)
            if arguments.timelines:
                middle = sorted(steps, key=lambda step: step.seconds)[len(steps) // 2]
                write_timelines(arguments.timelines, f"{pipeline}-{partitions}-{microbatches}", middle, predicted)
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument(
        "--pipelines", nargs="+", choices=["interleaved", "simple", "zero_bubble"], default=["interleaved", "simple"]
    )
    parser.add_argument(
        "--forward-ms", type=float, default=50.0, help="time of a stage's forward; its backward takes twice as long"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timelines", type=Path, help="an existing folder for Chrome traces of each case")
    arguments = parser.parse_args()
    print("pipeline      p   m     idle  theory   step s  [min    max]     predicted  ratio  overhead ms")
    with tempfile.TemporaryDirectory() as folder:
        # The ranks inherit it.
        os.environ["SMP_TIMELINE"] = f"{folder}/timeline.json"
        with Ranks(max(arguments.partitions)) as ranks:
            cases = run_cases(ranks, arguments)
    print(json.dumps({"forward_ms": arguments.forward_ms, "ok": all(case["ok"] for case in cases), "cases": cases}))


if __name__ == "__main__":
    main()
