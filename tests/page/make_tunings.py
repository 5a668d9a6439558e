"""Make searches in a home, without running them: their folders, and the jobs of their trials."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec
from tests.page.make_jobs import make_job, write_events

from herringbone.records.home import Home
from herringbone.tuner.definition import TuningDefinition, trial_job_name
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone.tuner.store import TuningRecord, TuningState, TuningStore

RANGES = {
    "lr": ContinuousParameter(1e-4, 1e-1, scaling_type="Logarithmic"),
    "momentum": ContinuousParameter(0.5, 0.99),
    "layers": IntegerParameter(1, 6),
    "optimizer": CategoricalParameter(["sgd", "adam", "lamb"]),
}


def definition_of(name: str, **settings: Any) -> TuningDefinition:
    """Return a definition over RANGES; `settings` replace its members."""
    members: dict[str, Any] = {
        "metric": "test_accuracy",
        "ranges": RANGES,
        "static": {"epochs": 9},
        "strategy": "Random",
        "max_jobs": 24,
        "max_parallel_jobs": 2,
        "seed": 7,
    }
    return TuningDefinition(name=name, **(members | settings))


def make_tuning(home: Home, definition: TuningDefinition, now: float, *, over: int, running: int = 0) -> TuningStore:
    """Make a search with so many trials that are over, and that run; the third failed, the fifth was stopped early."""
    store = TuningStore(home.tunings / definition.name)
    begin = now - 60.0 * (over + running) / definition.max_parallel_jobs
    with store.creating() as folder:
        request = {"arguments": {"instance_type": "local_process"}}
        record = TuningRecord(definition=definition, request=request, backend="local_process", created=begin)
        (folder / "tuning.json").write_bytes(msgspec.json.encode(record))
    noise = random.Random(5)
    lines: list[dict[str, Any]] = []
    for number in range(over + running):
        lines += _trial(
            home, definition, number, begin + 60.0 * (number // definition.max_parallel_jobs), noise, number < over
        )
    (store.path / "trials.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = not running
    store.set_state(TuningState(status="Completed" if done else "InProgress", ended=now if done else None))
    return store


def _trial(
    home: Home, definition: TuningDefinition, number: int, at: float, noise: random.Random, is_over: bool
) -> list[dict[str, Any]]:
    values = {name: values.from_unit(noise.random()) for name, values in definition.ranges.items()}
    job = trial_job_name(definition.name, number)
    failed, stopped, end = number == 2, number == 4, at + 20.0 + 30.0 * noise.random()
    status = "InProgress" if not is_over else "Failed" if failed else "Stopped" if stopped else "Completed"
    settings = {name: str(value) for name, value in {**definition.static, **values}.items()}
    folder = make_job(
        home,
        job,
        ranks=1,
        created=at,
        started=at + 1,
        hyperparameters=settings,
        **({"ended": end, "status": status, "secondary_status": status} if is_over else {}),
    )
    best = 0.98 - 0.06 * abs(math.log10(values.get("lr", 1e-2) / 8e-3)) - 0.02 * abs(values.get("layers", 3) - 3)
    best -= {"lamb": 0.05, "sgd": 0.02}.get(values.get("optimizer", ""), 0.0)
    curve = [
        best - 0.6 * math.exp(-epoch / 2.5) + noise.gauss(0, 0.006) for epoch in range(1, 10 if not stopped else 4)
    ]
    events = [
        {
            "kind": "metrics",
            "t": at + 1 + 3 * epoch,
            "name": definition.metric,
            "source": "script",
            "step": epoch,
            "values": [value],
        }
        for epoch, value in enumerate(curve)
    ]
    write_events(folder, "algo-1", events[: 9 if is_over else 5])
    lines = [{"kind": "proposed", "number": number, "values": values, "job": job, "t": at}]
    if is_over:
        ended: dict[str, Any] = {"kind": "ended", "number": number, "status": status, "t": end}
        if failed:
            ended["failure"] = "rank 0 on algo-1: ValueError: momentum 0.99 and nesterov do not go together"
        else:
            ended |= {"objective": curve[-1], "curve": curve, "early_stopped": stopped}
        lines.append(ended)
    return lines
