"""Searches of a real training: equal for equal seeds, cheaper by continuing trials, and unharmed by kills."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from herringbone import HyperparameterTuner, TrainingJob
from herringbone.system.processes import is_alive, pid_of
from herringbone.tuner.own import OwnTuning

from .tuned import EPOCHS, comparable, tuner, write_digits

pytest.importorskip("sklearn")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERRINGBONE_REPORT", "off")
    return str(write_digits(tmp_path / "data"))


def kill_searcher(tuning: OwnTuning) -> None:
    """Wait for the searcher to begin, and kill it."""
    deadline = time.monotonic() + 60
    while (searcher := tuning.state().searcher) is None or not is_alive(searcher):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid_of(searcher), signal.SIGKILL)
    while is_alive(searcher):
        time.sleep(0.001)


def test_a_search_that_is_killed_and_attached_equals_an_undisturbed_one(data: str) -> None:
    quiet = tuner("Random", jobs=4, instance_type="local_process")
    quiet.fit(data, job_name="quiet")
    killed = tuner("Random", jobs=4, instance_type="local_process").fit(data, job_name="killed", wait=False)
    assert isinstance(killed, OwnTuning)
    while not killed.trials():
        time.sleep(0.01)
    kill_searcher(killed)
    assert not killed.state().done
    again = HyperparameterTuner.attach("killed")
    # A searcher that dies while somebody waits is started again.
    kill_searcher(killed)
    again.wait()
    assert comparable(again.trials()) == comparable(quiet.trials())
    assert again.best_training_job() == quiet.best_training_job().replace("quiet", "killed")
    best = again.best_estimator()
    assert best.hyperparameters()["lr"] == json.dumps(
        again.trials()[int(again.best_training_job()[-3:]) - 1].values["lr"]
    )
    assert best.model_data is not None


def test_hyperband_continues_checkpoints(data: str) -> None:
    search = tuner("Hyperband", jobs=6, instance_type="local_process")
    search.fit(data, job_name="bands")
    records = search.trials()
    continued = [record for record in records if record.resumes is not None]
    assert continued
    for record in continued:
        earlier = records[record.resumes or 0]
        log = [line.text for line in TrainingJob.attach(record.job).logs()]
        assert f"begins at epoch {earlier.resource}" in log
        # The curve of a trial that continues has its own epochs alone.
        assert len(record.curve) == (record.resource or 0) - (earlier.resource or 0)
    assert max(record.resource or 0 for record in records) == EPOCHS
    # Every promotion copied: the earlier trial's checkpoint still is that of its own last epoch.
    state = search.latest_tuning_job._store.checkpoints(records[0].job) / "state.json"  # type: ignore[union-attr]
    assert json.loads(state.read_text())[0] == records[0].resource
