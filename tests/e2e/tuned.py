"""One search of the digits' regression, the same on every backend, and what its result is compared by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from herringbone import ContinuousParameter, Estimator, HyperbandStrategyConfig, HyperparameterTuner, StrategyConfig
from herringbone.tuner.store import TrialRecord

SCRIPT = Path(__file__).with_name("tuned_trainer.py")
EPOCHS = 9


def write_digits(folder: Path) -> Path:
    """Write some of scikit-learn's digits as JSON, and return the folder."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [[value / 16 for value in image] for image in digits.data[:240].tolist()]
    pairs = list(zip(images, digits.target[:240].tolist(), strict=True))
    folder.mkdir()
    (folder / "digits.json").write_text(json.dumps({"train": pairs[:160], "test": pairs[160:]}))
    return folder


def tuner(strategy: str, *, jobs: int = 6, **options: Any) -> HyperparameterTuner:
    """Return the tuner; `options` are those of the estimator. All searches of a strategy try the same values."""
    estimator = Estimator(str(SCRIPT), hyperparameters={"epochs": EPOCHS}, **options)
    config = StrategyConfig(HyperbandStrategyConfig(max_resource=EPOCHS, min_resource=1))
    return HyperparameterTuner(
        estimator,
        "test_loss",
        {
            "lr": ContinuousParameter(1e-3, 1.0, scaling_type="Logarithmic"),
            "decay": ContinuousParameter(1e-5, 1e-1, scaling_type="Logarithmic"),
        },
        strategy=strategy,
        objective_type="Minimize",
        max_jobs=jobs,
        max_parallel_jobs=2,
        random_seed=5,
        strategy_config=config if strategy == "Hyperband" else None,
    )


def comparable(records: list[TrialRecord]) -> list[tuple[Any, ...]]:
    """Return what must be equal in two searches of one definition."""
    return [(r.number, r.values, r.resource, r.resumes, r.status, r.objective) for r in records]
