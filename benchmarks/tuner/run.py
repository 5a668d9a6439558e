"""Measure the time that a search adds to each trial, beyond the `fit` of the same job.

Usage: python benchmarks/tuner/run.py [--rounds 5] [--trials 10] [--strategies Random,Hyperband,Bayesian]. The last line
is JSON: medians in seconds.

Between the end of one job and the row of the next, a search does all that it does, and a loop of `fit` does what `fit`
does. A job itself is the same in both, and takes ten times as long; so these gaps are compared, and not whole times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from herringbone import (
    ContinuousParameter,
    Estimator,
    HyperbandStrategyConfig,
    HyperparameterTuner,
    StrategyConfig,
    TrainingJob,
)
from herringbone.records.home import HOME_VARIABLE

# Every trial reports once at once, so that the jobs of all strategies take equally long.
SCRIPT = """
import argparse
from herringbone import log_metrics

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()
log_metrics({"accuracy": 1 - abs(arguments.lr - 0.3)})
"""


def gaps(names: Sequence[str]) -> list[float]:
    """Return the seconds from the end of each job to the creation of the next one."""
    jobs = [TrainingJob.attach(name).describe() for name in names]
    times = [[datetime.fromisoformat(job[key]) for key in ("CreationTime", "TrainingEndTime")] for job in jobs]
    return [(after[0] - before[1]).total_seconds() for before, after in pairwise(times)]


def fits(estimator: Estimator, count: int) -> list[float]:
    """Return the gaps between jobs of a loop that calls `fit` and waits."""
    return gaps([estimator.fit(logs=False).name for _ in range(count)])


def search(estimator: Estimator, strategy: str, trials: int) -> tuple[float, list[float]]:
    """Return the seconds from `fit` to the first trial, and the gaps between trials, one of which runs at a time."""
    hyperband = StrategyConfig(HyperbandStrategyConfig(max_resource=9, min_resource=1))
    tuner = HyperparameterTuner(
        estimator,
        "accuracy",
        {"lr": ContinuousParameter(0.001, 1.0, scaling_type="Logarithmic")},
        strategy=strategy,
        max_jobs=trials,
        random_seed=1,
        strategy_config=hyperband if strategy == "Hyperband" else None,
    )
    begin = time.time()
    # Generated names have the second of their start, and a search may take less.
    tuning = tuner.fit(wait=False, job_name=f"t-{time.time_ns() % 10**12}")
    tuning.wait()
    records = tuning.trials()
    assert all(record.status == "Completed" for record in records), records
    return records[0].proposed - begin, gaps([record.job for record in records])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--strategies", default="Random,Hyperband,Bayesian")
    arguments = parser.parse_args()
    strategies = arguments.strategies.split(",")
    with tempfile.TemporaryDirectory(prefix="hb-") as temporary:
        os.environ[HOME_VARIABLE] = f"{temporary}/home"
        # The report of each job is written beside the next one.
        os.environ["HERRINGBONE_REPORT"] = "off"
        script = Path(temporary, "train.py")
        script.write_text(SCRIPT)
        estimator = Estimator(str(script), instance_type="local_process", hyperparameters={"epochs": 9})
        # Compiles modules, and fills caches of the disk.
        fits(estimator, 2)
        starts: dict[str, list[float]] = {strategy: [] for strategy in strategies}
        searched: dict[str, list[float]] = {strategy: [] for strategy in strategies}
        fitted: dict[str, list[float]] = {strategy: [] for strategy in strategies}
        for number in range(arguments.rounds):
            # Each search has `fit`s of its own next to it: other work on the machine comes and goes.
            for strategy in strategies:
                fitted[strategy] += fits(estimator, arguments.trials)
                start, found = search(estimator, strategy, arguments.trials)
                starts[strategy].append(start)
                searched[strategy] += found
                print(f"round {number + 1}: {strategy}: {statistics.median(found):.4f}", flush=True)
    result = {}
    for strategy in strategies:
        start, trial, fit = (statistics.median(rows[strategy]) for rows in (starts, searched, fitted))
        result[strategy] = {
            "start": round(start, 3),
            "fit": round(fit, 4),
            "trial": round(trial, 4),
            "overhead": round(trial - fit, 4),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
