"""The jobs of trials, as the searcher sees them."""

import re

import pytest

from herringbone.backends.lifecycle import WATCHER_DIED, client_died
from herringbone.backends.waiter import COULD_NOT_START
from herringbone.plan.options.typed import MetricDefinition
from herringbone.plan.request import JobRequest
from herringbone.records.index import JobRecord
from herringbone.slots.pending import waiter_died
from herringbone.tuner.searcher.trial_jobs import _was_lost
from herringbone.tuner.trial_plan import objective_notes, own_metrics
from herringbone_contract.failure import Failure


@pytest.mark.parametrize(
    ("failure", "started", "lost"),
    [
        (client_died("it had a controller"), None, True),
        (waiter_died(), None, True),
        (waiter_died(), 1.0, False),
        (Failure(message=f"{WATCHER_DIED}: its log is empty"), 1.0, True),
        (Failure(host="algo-2", message=f"{WATCHER_DIED}: its log is empty"), 1.0, True),
        (Failure(host="algo-1", exit_code=137, message="killed"), 1.0, False),
        # Submitted again, it would fail again, except where a machine did not answer.
        (Failure(exit_code=0, message=f"{COULD_NOT_START}: no image"), None, False),
        (Failure(exit_code=0, message=f"{COULD_NOT_START}: h-1: silent", exception="HostError"), None, True),
        (Failure(host="algo-1", exit_code=1, message="no such file"), None, False),
    ],
)
def test_a_job_that_was_lost_is_told_from_one_that_failed(failure, started, lost):
    record = JobRecord(
        name="a",
        backend="ssh",
        plan="{}",
        created=0.0,
        hosts=1,
        status="Failed",
        started=started,
        failure=failure.to_json(),
    )
    assert _was_lost(record) is lost


@pytest.mark.parametrize("regex", ["a=([0-9.]+)", r"loss \(([0-9\.]*)\)", r".*a: (\d+\.\d+);", r"(?:a|b)=([\d.]+)(x)?"])
def test_a_regex_of_the_objective_that_takes_no_exponent_is_noted(regex):
    [note] = objective_notes("a", [MetricDefinition("a", regex), MetricDefinition("b", "([0-9.]+)")])
    assert "does not take all of 2e-05" in note


@pytest.mark.parametrize(
    "regex",
    [r"a=(\S+)", "a=(.*?)$", "a=([0-9]+)", "a=([0-9.e+-]+)", r"a=(\d+(?:\.\d+)?)", "a=(.+", "(?P<a>[0-9.]+)", "a"],
)
def test_other_regexes_are_not_noted(regex):
    assert objective_notes("a", [MetricDefinition("a", regex)]) == ()
    assert objective_notes("a", []) == ()


@pytest.mark.parametrize(
    ("estimator", "objective", "found"),
    [
        ("XGBoost", "validation:rmse", ["validation:rmse"]),
        ("XGBoost", "rmse", []),
        ("SKLearn", "validation:rmse", []),
    ],
)
def test_the_metrics_that_xgboost_logs_itself_are_known(estimator, objective, found):
    metrics = own_metrics(JobRequest(estimator=estimator), objective)
    assert [metric.name for metric in metrics] == found
    for metric in metrics:
        line = "[12]\ttrain-rmse:2.5\tvalidation-rmse:0.25"
        assert re.search(metric.regex, line)[1] == "0.25"
        assert re.search(metric.regex, line.replace("validation", "my-validations")) is None
