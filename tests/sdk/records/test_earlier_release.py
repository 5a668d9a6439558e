"""Jobs and a search that an earlier release left, read by this one.

`earlier/` is what commit f4f6704f left of two jobs and a search of three trials: the index as SQL, the folders of the
home without code and results, and in `shown.json` what that commit showed of them. @ROOT@ stands for the folder above.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herringbone import Estimator, HyperparameterTuner, PyTorch, TrainingJob
from herringbone.records.home import Home

EARLIER = Path(__file__).with_name("earlier")


@pytest.fixture
def shown(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the earlier release showed; its home is this test's."""

    def here(text: str) -> str:
        return text.replace("@ROOT@", str(tmp_path))

    shutil.copytree(EARLIER / "work", tmp_path / "work", dirs_exist_ok=True)
    for file in (EARLIER / "home").rglob("*"):
        if file.is_file():
            copy = home.path / file.relative_to(EARLIER / "home")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(here(file.read_text()))
    # No .py here: the script is as long as it was, whatever the formatter thinks of it.
    (tmp_path / "work/train.txt").rename(tmp_path / "work/train.py")
    with contextlib.closing(sqlite3.connect(home.index)) as index:
        index.executescript(here((EARLIER / "index.sql").read_text()))
    monkeypatch.chdir(tmp_path / "work")
    values: dict[str, Any] = json.loads(here((EARLIER / "shown.json").read_text()))
    return values


@pytest.mark.parametrize("name", ["digits-1", "digits-2", "search-1-002"])
def test_a_job_shows_the_same(shown: dict[str, Any], name: str) -> None:
    job, earlier = TrainingJob.attach(name), shown[name]
    assert as_json(job.describe()) == earlier["describe"]
    assert as_json(job.plan.to_dict()) == earlier["plan"]
    # That release did not show the command line.
    lines = [line for line in str(job.plan).splitlines() if not line.startswith("command line:")]
    assert lines == earlier["text"].splitlines()
    assert [line.text for line in job.logs()] == earlier["logs"]
    assert [[metric.name, metric.value, metric.rank] for metric in job.metrics()] == earlier["metrics"]
    assert (None if job.failure is None else job.failure.render()) == earlier["failure"]


def test_a_job_runs_again(shown: dict[str, Any]) -> None:
    estimator = PyTorch.like("digits-1", environment={"API_TOKEN": "new"}, hyperparameters={"lr": 0.25})
    assert as_json(estimator.plan(job_name="digits-3").to_dict()) == shown["like"]
    assert repr(Estimator.attach("digits-2")) == shown["repr"]


def test_a_search_shows_the_same(shown: dict[str, Any]) -> None:
    tuner, earlier = HyperparameterTuner.attach("search-1"), shown["search"]
    assert as_json(tuner.describe()) == earlier["describe"]
    assert tuner.best_training_job() == earlier["best"]


def as_json(value: object) -> Any:
    default: Callable[[object], str] = str
    return json.loads(json.dumps(value, default=default))
