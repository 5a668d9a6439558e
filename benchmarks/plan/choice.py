"""Measures all layouts that 4 ranks can run with a script of `smp`, and compares the chosen one with the best.

choose(bench, "gpt2", options, folder).over_best       # 1.03: a sample takes 3 % longer than with the best layout
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ranks import RunFailed, Servers

RANKS = 4
_BASE = {"partitions": 1, "ddp": True}


class Bench(Protocol):
    """The parts of the benchmark that a choice uses."""

    def measurement(self, model: str, library: str) -> Path: ...

    def timings(self, measurement: Path, ranks: int) -> Path | None: ...

    def arguments(self, model: str, library: str) -> list[str]: ...

    def predict(
        self, measurement: Path, timings: Path | None, ranks: int, distribution: Mapping[str, Any], limit: int = 0
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Choice:
    """One case: measured samples a second of the chosen layout and of the best one."""

    case: str
    layouts: int
    chosen: str
    chosen_rate: float
    best: str
    best_rate: float

    @property
    def over_best(self) -> float:
        """The seconds of a sample with the chosen layout, divided by those with the best one."""
        return self.best_rate / self.chosen_rate


def choose(bench: Bench, model: str, options: argparse.Namespace, folder: Path) -> Choice:
    """Predict all layouts, measure each of them, and compare; `options` are those of the benchmark.

    Raises `RunFailed` if no layout could be measured, or the chosen one could not.
    """
    measurement = bench.measurement(model, "smp")
    timings = bench.timings(measurement, RANKS)
    base = {
        "mpi": {"enabled": True, "processes_per_host": RANKS},
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": _BASE}},
    }
    layouts = [
        one for one in bench.predict(measurement, timings, RANKS, base, options.limit)["layouts"] if one.get("step")
    ]
    rates: list[float] = []
    with Servers(RANKS, folder) as servers:
        for number, layout in enumerate(layouts):
            parameters = layout["distribution"]["smdistributed"]["modelparallel"]["parameters"]
            try:
                real = servers.run([*bench.arguments(model, "smp"), "--steps", str(options.steps)], parameters)
            except RunFailed as error:
                print(f"  {model} {json.dumps(parameters)}: {error}", file=sys.stderr, flush=True)
                rates.append(0.0)
                continue
            seconds = real.shared_seconds if options.processor else real.step_seconds
            mesh = layout["mesh"]
            rates.append(options.batch * mesh["replicate"] * mesh["shard"] * mesh["tensor"] / seconds)
            expected = layout["samples_per_second"]
            print(
                f"  {model} {number + 1}/{len(layouts)} {json.dumps(parameters)}: {rates[-1]:.2f} samples/s, predicted"
                f" {expected:.2f}; {real.processor_seconds:.3f} processor s a step",
                file=sys.stderr,
                flush=True,
            )
    if not layouts or not rates[0]:
        raise RunFailed("the chosen layout could not be measured")
    best = max(range(len(rates)), key=rates.__getitem__)
    return Choice(
        f"{model} {options.batch}", len(layouts), _text(layouts[0]), rates[0], _text(layouts[best]), rates[best]
    )


def _text(layout: Mapping[str, Any]) -> str:
    return json.dumps(layout["distribution"]["smdistributed"]["modelparallel"]["parameters"])
