"""What runs jobs by itself does so on the cluster, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herringbone import ContinuousParameter, Estimator, HyperparameterTuner
from tests.kubernetes.images import SMALL

pytestmark = pytest.mark.kubernetes
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
print(f"loss={2 * parser.parse_args().lr};", flush=True)
"""


def test_the_trials_of_a_search_are_pods(submit: Callable[..., Any]) -> None:
    assert submit
    Path("train.py").write_text(SCRIPT)
    estimator = Estimator(
        "train.py", instance_type="k8s:team-a", instance_count=1, image_uri=SMALL, output_path="pvc://results/jobs"
    )
    tuner = HyperparameterTuner(
        estimator,
        "loss",
        {"lr": ContinuousParameter(0.1, 1.0)},
        metric_definitions=[{"Name": "loss", "Regex": r"loss=(\S+);"}],
        objective_type="Minimize",
        strategy="Random",
        max_jobs=2,
        max_parallel_jobs=2,
        random_seed=7,
    )
    tuner.fit(wait=True)
    description = tuner.describe()
    assert description["TrainingJobStatusCounters"]["Completed"] == 2, description
    best = description["BestTrainingJob"]
    value = best["FinalHyperParameterTuningJobObjectiveMetric"]["Value"]
    assert value == pytest.approx(2 * float(best["TunedHyperParameters"]["lr"]))
