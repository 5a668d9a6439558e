"""The copy for Optuna's dashboard: Optuna reads it, a kill does not spoil it, and it costs little."""

import math
import time

import pytest

pytest.importorskip("optuna")

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from tests.sdk.tuner.simulation import run, search_of

from herringbone.tuner.strategies.choose import copy_for
from herringbone.tuner.trials import Proposal, Trial, TrialState

DEFINITION = search_of("Bayesian")


def load(path):
    return optuna.load_study(study_name="digits", storage=JournalStorage(JournalFileBackend(str(path))))


def trial_of(number, state, curve=(), objective=None):
    return Trial(
        Proposal(number, {"lr": 0.01, "momentum": 0.5 + number / 100}), f"digits-{number}", state, objective, curve
    )


def test_optuna_reads_a_whole_search(tmp_path):
    trials = run(DEFINITION)
    copy_for(DEFINITION, tmp_path / "optuna.journal")(trials)
    study = load(tmp_path / "optuna.journal")
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert [trial.params for trial in study.trials] == [trial.proposal.values for trial in trials]
    assert [trial.value for trial in study.trials] == [trial.objective for trial in trials]
    assert study.trials[0].intermediate_values[27] == trials[0].curve[-1]
    assert len(study.trials[0].intermediate_values) <= 20


def test_each_state_in_optunas_words(tmp_path):
    write = copy_for(DEFINITION, tmp_path / "optuna.journal")
    write([trial_of(0, TrialState.IN_PROGRESS), trial_of(1, TrialState.PROPOSED)])
    assert [trial.state.name for trial in load(tmp_path / "optuna.journal").trials] == ["RUNNING", "RUNNING"]
    write(
        [
            trial_of(0, TrialState.COMPLETED, (0.1, 0.5), 0.5),
            trial_of(1, TrialState.FAILED, (0.1,)),
            trial_of(2, TrialState.STOPPED, (0.2,), 0.2),
            trial_of(3, TrialState.COMPLETED, (math.nan,), math.nan),
        ]
    )
    study = load(tmp_path / "optuna.journal")
    assert [(trial.state.name, trial.value) for trial in study.trials] == [
        ("COMPLETE", 0.5),
        ("FAIL", None),
        ("COMPLETE", 0.2),
        ("FAIL", None),
    ]
    assert study.trials[1].user_attrs["job"] == "digits-1"


@pytest.mark.parametrize("lost", [1, 30, 300])
def test_a_copy_that_a_kill_tore_is_written_anew(tmp_path, lost, monkeypatch):
    path = tmp_path / "optuna.journal"
    trials = run(DEFINITION)
    copy_for(DEFINITION, path)(trials)
    path.write_bytes(path.read_bytes()[:-lost])
    (tmp_path / "optuna.journal.lock").symlink_to(path)  # which a killed writer leaves
    # Optuna sleeps while it waits for a lock.
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited for a lock that nobody holds"))
    copy_for(DEFINITION, path)(trials)
    assert len(load(path).trials) == len(trials)


def test_a_line_that_is_no_json(tmp_path):
    path = tmp_path / "optuna.journal"
    trials = run(DEFINITION)
    copy_for(DEFINITION, path)(trials)
    path.write_bytes(b"torn{\n" + path.read_bytes())
    copy_for(DEFINITION, path)(trials)
    assert len(load(path).trials) == len(trials)


def test_other_strategies_write_none(tmp_path):
    copy_for(search_of("Random"), tmp_path / "optuna.journal")(run(search_of("Random")))
    assert not list(tmp_path.iterdir())
