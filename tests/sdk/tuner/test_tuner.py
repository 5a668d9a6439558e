"""`HyperparameterTuner` on `local_process`: creation, secrets, stopping, attaching, warm starts."""

import json
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from herringbone import (
    CategoricalParameter,
    ContinuousParameter,
    Estimator,
    HyperparameterTuner,
    IntegerParameter,
    PyTorch,
    TrainingJob,
)
from herringbone.api.tuning.creation import free_name
from herringbone.records.index import JobIndex, JobRecord
from herringbone.show.cells import shown_number
from herringbone.system.processes import is_alive, pid_of
from herringbone.tuner.own import OwnTuning, start_searcher
from herringbone.tuner.searcher.runner import _Mirror
from herringbone.tuner.store import TuningState, TuningStore
from herringbone.tuner.tuning import find_tuning, tuning_names
from herringbone_contract.errors import (
    InputError,
    JobNameError,
    JobNotFoundError,
    OptionError,
    TuningFailedError,
    UnsupportedError,
)

SCRIPT = """
import os, sys, time
from herringbone import log_metrics
lr = float(os.environ["SM_HP_LR"])
log_metrics({"accuracy": 1 - abs(lr - 0.3)})
print("token", os.environ.get("API_TOKEN"), "steps", os.environ.get("SM_HP_STEPS"))
if os.environ.get("SECONDS"):
    time.sleep(float(os.environ["SECONDS"]))
"""
RANGES = {"lr": ContinuousParameter(0.01, 1.0)}


@pytest.fixture(autouse=True)
def without_reports(monkeypatch):
    monkeypatch.setenv("HERRINGBONE_REPORT", "off")


def estimator(kind=Estimator, **options):
    Path("train.py").write_text(SCRIPT)
    return kind("train.py", instance_type="local_process", **options)


def tuner(estimator_of=None, **settings):
    settings = {"strategy": "Random", "max_jobs": 2, "random_seed": 1, **settings}
    return HyperparameterTuner(estimator_of or estimator(), "accuracy", settings.pop("ranges", RANGES), **settings)


def kill(tuning):
    """Kill the searcher of a tuning job, once it searches."""
    while (searcher := tuning.state().searcher) is None or not tuning.trials():
        time.sleep(0.005)
    os.kill(pid_of(searcher), signal.SIGKILL)
    while is_alive(searcher):
        time.sleep(0.001)


def test_a_search_finds_the_best_trial_and_its_estimator(home, capfd):
    search = tuner(estimator(PyTorch, hyperparameters={"lr": 7, "steps": 3}), max_parallel_jobs=2)
    tuning = search.fit(job_name="digits")
    best = max(search.trials(), key=lambda record: record.objective)
    assert search.best_training_job() == best.job
    found = search.best_estimator()
    assert isinstance(found, PyTorch)
    assert found.hyperparameters()["lr"] == json.dumps(best.values["lr"])
    log = [line.text for line in TrainingJob.attach("digits-001").logs()]
    assert "token None steps 3" in log
    error = capfd.readouterr().err
    assert f"tuning job digits: Completed, best: job {best.job}, accuracy {shown_number(best.objective)}" in error
    description = tuning.describe()
    assert description["HyperParameterTuningJobStatus"] == "Completed"
    assert description["BestTrainingJob"]["TrainingJobName"] == best.job
    assert description["TrainingJobStatusCounters"]["Completed"] == 2
    json.dumps(description)
    assert tuning_names() == ["digits"]


def test_all_trials_run_the_code_as_it_was_at_fit(home):
    search = tuner(estimator(environment={"SECONDS": "0.3"}))
    search.fit(job_name="digits", wait=False)
    Path("train.py").write_text("raise SystemExit(3)")
    search.wait()
    assert [record.status for record in search.trials()] == ["Completed", "Completed"]


def test_secrets_are_on_no_disk_and_an_attached_search_asks_for_them(home, herringbone):
    search = tuner(estimator(environment={"API_TOKEN": "hunter2-42", "SECONDS": "0.5"}))
    tuning = search.fit(job_name="digits", wait=False)
    kill(tuning)
    stored = [path for path in (home.path / "tunings").rglob("*") if path.is_file()]
    assert len(stored) > 3
    assert [path for path in stored if b"hunter2-42" in path.read_bytes()] == []
    code, _, error = herringbone("tune", "attach", "digits")
    assert (code, "tuning job digits: environment.API_TOKEN: stored masked" in error) == (2, True)
    # `tune attach` has no flag for it.
    assert error.rstrip().endswith("give it again in Python: HyperparameterTuner.attach('digits', environment={...})")
    assert not tuning.state().done
    again = HyperparameterTuner.attach("digits", environment={"API_TOKEN": "hunter2-42"})
    again.wait()
    assert [record.status for record in again.trials()] == ["Completed", "Completed"]
    for record in again.trials():
        assert "token hunter2-42 steps None" in [line.text for line in TrainingJob.attach(record.job).logs()]
    # A search that is over needs no secret.
    assert HyperparameterTuner.attach("digits").best_training_job() == again.best_training_job()
    with pytest.raises(OptionError, match="environment: tuning job digits is over"):
        HyperparameterTuner.attach("digits", environment={"API_TOKEN": "hunter2-42"})


def test_stop_ends_the_running_trial_and_the_search(home):
    search = tuner(estimator(environment={"SECONDS": "60"}), max_jobs=5)
    tuning = search.fit(job_name="digits", wait=False)
    while not tuning.trials():
        time.sleep(0.01)
    search.stop_tuning_job()
    search.wait()
    assert [record.status for record in search.trials()] == ["Stopped"]
    assert tuning.describe()["HyperParameterTuningJobStatus"] == "Stopped"


def test_stop_works_after_the_searcher_was_killed(home):
    search = tuner(estimator(environment={"API_TOKEN": "hunter2-42", "SECONDS": "60"}))
    tuning = search.fit(job_name="digits", wait=False)
    kill(tuning)
    # Another process, which has no secret.
    find_tuning("digits").stop()
    assert tuning.state().status == "Stopped"
    assert [record.status for record in tuning.trials()] == ["Stopped"]


INTERRUPTED = """
import sys
from herringbone import *
tuner = HyperparameterTuner(Estimator("train.py", instance_type="local_process", environment={"SECONDS": "60"}),
    "accuracy", {"lr": ContinuousParameter(0.01, 1.0)}, strategy="Random", max_jobs=2, random_seed=1)
tuner.fit(job_name="digits", on_interrupt=sys.argv[1])
"""


@pytest.mark.parametrize(("choice", "status"), [("stop", "Stopped"), ("detach", "InProgress")])
def test_ctrl_c_stops_the_search_or_leaves_it(home, start_python, choice, status):
    estimator()
    child = start_python(INTERRUPTED, choice, stderr=-1)
    store = TuningStore(home.tuning("digits"))
    deadline = time.monotonic() + 30
    index = JobIndex(home.index)
    while "digits-001" not in index.names() or index.get("digits-001").controller is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    error = child.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in error
    assert store.state().status == status
    if choice == "detach":
        assert "tuning job digits goes on" in error
        tuning = find_tuning("digits")
        tuning.stop()
        tuning.wait()


def test_a_search_without_a_result_fails_and_says_why(home):
    search = tuner(max_jobs=1)
    search.objective_metric_name = "acuracy"
    with pytest.raises(TuningFailedError, match="none of 1 training jobs reported the objective metric 'acuracy'"):
        search.fit()
    with pytest.raises(InputError, match="no training job has a value of the objective metric yet"):
        search.best_training_job()


def test_a_generated_name_is_one_that_no_search_has(home):
    now = datetime(2026, 11, 29, 21, 8, 59)
    home.make()
    names = []
    for number in range(2):
        names.append(free_name("fit", now))
        JobIndex(home.index).add(JobRecord(name=f"{names[-1]}-001", backend="local", plan="{}", created=float(number)))
    home.tuning("fit-261129-210901").mkdir(parents=True)
    assert [*names, free_name("fit", now)] == ["fit-261129-210859", "fit-261129-210900", "fit-261129-210902"]


def test_names_that_are_taken_are_refused_and_leave_nothing(home):
    first = estimator(hyperparameters={"lr": 0.1}).fit(job_name="digits-002", logs=False)
    with pytest.raises(JobNameError, match="there is a job digits-002, which is the name of a trial"):
        tuner().fit(job_name="digits")
    first.remove()
    tuner(max_jobs=1).fit(job_name="digits")
    with pytest.raises(JobNameError, match="tuning job name 'digits'"):
        tuner().fit(job_name="digits")
    assert [path.name for path in home.tunings.iterdir()] == ["digits"]
    with pytest.raises(JobNotFoundError, match="did you mean digits"):
        HyperparameterTuner.attach("digit")


def test_what_no_trial_can_have_is_refused_before_anything_is_written(home):
    for broken, error in (
        (tuner(estimator(volume_kms_key="k")), UnsupportedError),
        (tuner(strategy="Hyperband"), OptionError),
        (tuner(ranges={"sagemaker_program": CategoricalParameter(["a"])}), OptionError),
    ):
        for call in (broken.plan, broken.fit):
            with pytest.raises((error, ValueError)):
                call()
    assert not home.tunings.exists()
    with pytest.raises(OptionError, match="did you mean max_runtime_in_seconds"):
        tuner(max_runtime_in_second=3)
    with pytest.raises(UnsupportedError, match="estimator_name"):
        tuner(estimator_name="a")
    with pytest.raises(OptionError, match="no tuning job yet"):
        tuner().describe()


def test_the_plan_is_that_of_a_trial_in_the_middle(home):
    plan = tuner(
        estimator(hyperparameters={"epochs": 8, "lr": 3}), strategy="Hyperband",
        ranges={"lr": ContinuousParameter(0, 1), "depth": IntegerParameter(1, 9)},
    ).plan(job_name="digits")  # fmt: skip
    values = {name: plan.hyperparameters[name] for name in ("epochs", "lr", "depth")}
    assert (plan.job_name, values) == ("digits-001", {"epochs": "8", "lr": "0.5", "depth": "5"})
    assert plan.options.checkpoint_s3_uri == str(home.tuning("digits") / "checkpoints" / "digits-001")


def test_trials_have_folders_of_their_own_in_the_users_folder(home, tmp_path):
    search = tuner(estimator(checkpoint_s3_uri="kept"))
    search.fit(job_name="digits")
    assert sorted(path.name for path in Path("kept").iterdir()) == ["digits-001", "digits-002"]
    assert search.estimator.options.checkpoint_s3_uri == "kept"


def test_a_warm_start_takes_the_results_of_a_search_that_is_over(home):
    parent = tuner()
    parent.fit(job_name="parent")
    child = parent.identical_dataset_and_algorithm_tuner()
    child.options["random_seed"] = 2
    tuning = child.fit(job_name="child")
    priors = tuning.definition().priors
    assert [prior.objective for prior in priors] == [record.objective for record in parent.trials()]
    running = tuner(estimator(environment={"SECONDS": "60"}))
    running.fit(job_name="running", wait=False)
    with pytest.raises(OptionError, match="parent 'running' is InProgress"):
        running.transfer_learning_tuner().fit(job_name="child-2")
    assert not home.tuning("child-2").exists()
    running.stop_tuning_job()
    running.wait()


def test_a_searcher_that_cannot_go_on_is_not_started_for_ever(home):
    search = tuner(estimator(environment={"SECONDS": "60"}))
    tuning = search.fit(job_name="digits", wait=False)
    assert isinstance(tuning, OwnTuning)
    kill(tuning)
    (home.tuning("digits") / "lock").unlink()
    (home.tuning("digits") / "lock").mkdir()
    with pytest.raises(Exception, match=r"its searcher died 4 times without a new trial: .*IsADirectoryError"):
        tuning.wait()
    (home.tuning("digits") / "lock").rmdir()
    tuning.stop()
    tuning.wait()


def test_a_searcher_of_a_machine_that_is_gone_does_not_count_for_ever(home):
    store = TuningStore(home.tuning("digits"))
    store.path.mkdir(parents=True)
    store.set_state(TuningState(searcher="7@1", place="other-node m1 boot-9 pid:[99]"))
    (store.path / "lock").touch()
    assert OwnTuning(store, home).is_searched
    os.utime(store.path / "lock", (1.0, 1.0))
    assert not OwnTuning(store, home).is_searched
    store.beat()
    assert OwnTuning(store, home).is_searched


def test_a_search_that_nobody_searches_is_stopped_without_its_strategy(home, monkeypatch):
    tuning = tuner(estimator(environment={"SECONDS": "60"})).fit(job_name="digits", wait=False)
    kill(tuning)

    def missing(definition):
        raise UnsupportedError("strategy: Bayesian search needs Optuna")

    monkeypatch.setattr("herringbone.tuner.searcher.runner.strategy_for", missing)
    find_tuning("digits").stop()
    assert tuning.state().status == "Stopped"


def test_a_kill_passes_over_a_trial_without_a_job(home):
    tuning = tuner(estimator(environment={"SECONDS": "60"}), max_parallel_jobs=2).fit(job_name="digits", wait=False)
    store = TuningStore(home.tuning("digits"))
    while "job digits-002 started" not in store.last_words():
        time.sleep(0.05)
    kill(tuning)
    lines = (store.path / "trials.jsonl").read_text()
    (store.path / "trials.jsonl").write_text(lines.replace("digits-001", "digits-x01"))
    tuning.kill()
    assert TrainingJob.attach("digits-002").status == "Stopped"
    (store.path / "trials.jsonl").write_text(lines)
    tuning.kill()


def test_masked_secrets_of_an_attached_estimator_are_refused_before_anything_is_written(home):
    search = tuner(estimator(environment={"API_TOKEN": "hunter2-42"}), max_jobs=1)
    search.fit(job_name="digits")
    child = HyperparameterTuner.attach("digits").identical_dataset_and_algorithm_tuner()
    with pytest.raises(InputError, match=r"environment.API_TOKEN: stored masked"):
        child.plan()
    with pytest.raises(InputError, match=r"environment.API_TOKEN: stored masked"):
        child.fit(job_name="child")
    assert not home.tuning("child").exists()


def test_a_searcher_imports_nothing_of_the_users_code(home):
    store = TuningStore(home.tuning("digits"))
    store.code.mkdir(parents=True)
    (store.code / "__init__.py").write_text("")
    command = (sys.executable, "-c", "import code, sys; sys.stdin.read(); print(code.__file__)")
    searcher = start_searcher(store, home, estimator()._request, command=command)
    while is_alive(searcher):
        time.sleep(0.01)
    assert store.last_words().endswith("/code.py")


def test_a_search_goes_on_without_its_copy_for_optuna(home, monkeypatch):
    def broken(definition, path):
        raise AssertionError("another release")

    said = []
    monkeypatch.setattr("herringbone.tuner.searcher.runner.copy_for", broken)
    mirror = _Mirror(TuningStore(home.tuning("digits")), tuner().definition("digits"), said.append)
    mirror([])
    mirror([])
    assert said == ["optuna.journal is no longer written: AssertionError: another release"]
