"""Follow tuning jobs at a scripted SageMaker: describe, list, stop, wait and attach, with faults."""

from __future__ import annotations

import json

import pytest
from tests.sdk.tuner.service.calls import CASES, own_request
from tests.sdk.tuner.service.tunings import described, summary

from herringbone.api.tuner import HyperparameterTuner
from herringbone.aws.session import AwsSession
from herringbone.system.polling import Pace
from herringbone.tuner.service.tuning import ServiceRecord, ServiceTuning, attach_tuning, claim_folder
from herringbone_contract.errors import (
    AwsUnavailableError,
    InputError,
    JobNotFoundError,
    OptionError,
    TuningFailedError,
    UnsupportedError,
)

pytestmark = pytest.mark.usefixtures("home")
PLAIN = next(case for case in CASES if case["name"] == "random")
# Throttled answers are retried by boto with pauses of its own, so most tests send each request once.
ONCE = {"attempts": 1}


@pytest.fixture
def request_(project_folder):
    return own_request(PLAIN)


@pytest.fixture
def tuning(service, request_):
    service.tunings["digits-1"] = [described(request_)]
    return ServiceTuning("digits-1", AwsSession(**ONCE), pace=Pace(0.0, 0.0, 1.0))


def test_all_pages_of_trials_in_the_order_of_their_numbers(service, tuning):
    service.trials["digits-1"] = [summary(3, 0.7), summary(1, 0.9), summary(10, 0.5), summary(2), summary(4, 0.8)]
    records = tuning.trials()
    assert [record.job[9:12] for record in records] == ["001", "002", "003", "004", "010"]
    assert [record.number for record in records] == [0, 1, 2, 3, 4]
    assert [record.objective for record in records] == [0.9, None, 0.7, 0.8, 0.5]
    assert records[0].values == {"lr": 0.01}
    assert (records[0].proposed, records[0].started, records[0].ended) == (1_001.0, 1_061.0, 1_101.0)
    assert service.calls["ListTrainingJobsForHyperParameterTuningJob"] == 3


def test_a_search_of_sagemaker_has_the_summary_of_a_local_one(service, tuning):
    service.trials["digits-1"] = [summary(1, 0.9), {**summary(2), "TrainingJobStatus": "InProgress"}]
    look = tuning.look()
    figures = look.summary(now=look.created + 60.0)
    assert (look.name, look.status, look.backend, look.reason) == ("digits-1", "InProgress", "sagemaker", None)
    assert (figures.over, figures.best.job[9:12], figures.seconds) == (1, "001", 60.0)
    assert figures.eta == 60.0 * (figures.limit - 1)


def test_looks_in_quick_succession_ask_once(service, request_):
    service.tunings["digits-1"] = [described(request_)]
    now = 0.0
    tuning = ServiceTuning("digits-1", AwsSession(), pace=Pace(5.0, 30.0, 1.5), clock=lambda: now)
    tuning.describe(), tuning.definition(), tuning.trials()
    assert service.calls["DescribeHyperParameterTuningJob"] == 1
    now = 5.0
    tuning.describe()
    assert service.calls["DescribeHyperParameterTuningJob"] == 2


def test_an_unknown_name(service):
    with pytest.raises(JobNotFoundError, match="no tuning job 'nobodys' in account 123456789012, region eu-central-1"):
        attach_tuning("nobodys")


def test_another_process_finds_the_account_and_region_in_the_folder(service, request_, home, monkeypatch):
    service.tunings["digits-1"] = [described(request_)]
    folder = home.tuning("digits-1")
    here = ServiceTuning("digits-1", AwsSession())
    record = ServiceRecord(definition=here.definition(), location=AwsSession().location, created=1.0)
    claim_folder(folder, record)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(JobNotFoundError, match=r"(?s)SageMaker was not asked: .*region"):
        attach_tuning("digits-1")
    assert attach_tuning("digits-1", folder=folder).describe()["HyperParameterTuningJobStatus"] == "InProgress"


def test_a_description_shows_no_secrets(service, tuning, request_):
    trial = request_["TrainingJobDefinition"]
    trial["Environment"] = {"API_TOKEN": "hunter2", "MODE": "fast"}
    trial["StaticHyperParameters"]["api_key"] = '"hunter2"'
    service.tunings["digits-1"] = [described(request_)]
    shown = tuning.describe()
    assert "hunter2" not in json.dumps(shown)
    assert shown["TrainingJobDefinition"]["Environment"]["MODE"] == "fast"
    assert shown["CreationTime"].startswith("1970-01-01T00:16:40")


def test_wait_tells_each_trial_once_and_ends_with_the_search(service, tuning, request_):
    service.tunings["digits-1"] = [described(request_)] * 3 + [described(request_, "Completed")]
    service.trials["digits-1"] = [summary(1, 0.9), summary(2, status="InProgress"), summary(3, status="Failed")]
    lines: list[str] = []
    tuning.wait(lines.append)
    assert lines == [
        "trial 1: job digits-1-001-0a1b2c3d: Completed, accuracy 0.9 (lr=0.01)",
        "trial 3: job digits-1-003-0a1b2c3d: Failed (lr=0.03)",
    ]


def test_wait_raises_the_reason_of_a_failed_search(service, tuning, request_):
    service.tunings["digits-1"] = [described(request_, "Failed", FailureReason="No metrics were found")]
    with pytest.raises(TuningFailedError, match="tuning job digits-1 failed: No metrics were found"):
        tuning.wait()


def test_wait_gives_up_after_its_timeout(tuning):
    with pytest.raises(TimeoutError, match=r"digits-1 is not over after 0\.0 s; it goes on"):
        tuning.wait(timeout=0.0)


def test_throttling_during_a_wait_is_reported_once(service, tuning, request_, capsys):
    states = [described(request_)] * 2 + [described(request_, "Completed")]
    service.tunings["digits-1"] = states
    seen = []

    def say(line: str) -> None:
        seen.append(line)
        service.fail("DescribeHyperParameterTuningJob", 3, "ThrottlingException", "Rate exceeded")

    service.trials["digits-1"] = [summary(1, 0.9)]
    tuning.wait(say)
    assert capsys.readouterr().err.splitlines() == [
        "to find tuning job digits-1 in eu-central-1: AWS cannot serve the request now (ThrottlingException): "
        "Rate exceeded; try again later. The wait for tuning job digits-1 goes on",
        "AWS answers again: tuning job digits-1",
    ]
    assert len(seen) == 1


def test_throttling_at_the_first_question_is_raised(service, tuning):
    service.fail("DescribeHyperParameterTuningJob", 1, "ThrottlingException", "Rate exceeded")
    with pytest.raises(AwsUnavailableError, match="ThrottlingException"):
        tuning.wait()


def test_boto_retries_a_throttled_list(service, request_):
    service.tunings["digits-1"] = [described(request_)]
    service.trials["digits-1"] = [summary(1, 0.9)]
    service.fail("ListTrainingJobsForHyperParameterTuningJob", 1, "ThrottlingException", "Rate exceeded")
    assert len(ServiceTuning("digits-1", AwsSession()).trials()) == 1


def test_stop(service, tuning):
    tuning.stop()
    assert service.stopped == ["digits-1"]
    assert tuning.describe()["HyperParameterTuningJobStatus"] == "Stopping"
    tuning.wait()
    tuning.stop()
    assert service.calls["StopHyperParameterTuningJob"] == 1


def test_a_search_that_ends_while_it_is_stopped(service, tuning):
    service.refuse_to_stop = True
    tuning.stop()
    assert tuning.describe()["HyperParameterTuningJobStatus"] == "Completed"


def test_attach_rebuilds_the_estimator_and_the_search(service, request_, home):
    service.tunings["digits-1"] = [described(request_, "Completed")]
    service.trials["digits-1"] = [summary(1, 0.9), summary(2, 0.95)]
    service.tags = [{"Key": "team", "Value": "vision"}]
    tuner = HyperparameterTuner.attach("digits-1")
    assert type(tuner.estimator).__name__ == "PyTorch"
    assert tuner.estimator.instance_type == "ml.p4d.24xlarge"
    assert tuner.estimator.options.tags == ({"Key": "team", "Value": "vision"},)
    # The objective that SageMaker adds is no hyperparameter of the script.
    assert tuner.estimator._request.arguments.hyperparameters == {}
    assert (tuner.strategy, tuner.max_jobs, tuner.max_parallel_jobs) == ("Random", 20, 4)
    assert tuner.best_training_job() == "digits-1-002-0a1b2c3d"
    # The search ended, so nobody starts it again.
    assert service.calls["StopHyperParameterTuningJob"] == 0


@pytest.mark.parametrize("name", ["hyperband", "completion", "warm-start-transfer", "autotune", "autotune-with-ranges"])
def test_an_attached_tuner_plans_the_same_search_again(service, project_folder, home, name):
    case = next(case for case in CASES if case["name"] == name)
    request = own_request(case)
    service.tunings["digits-1"] = [described(request)]
    again = HyperparameterTuner.attach("digits-1").plan(job_name="digits-1").request
    assert again["HyperParameterTuningJobConfig"] == request["HyperParameterTuningJobConfig"]
    assert again.get("WarmStartConfig") == request.get("WarmStartConfig")
    assert again.get("Autotune") == request.get("Autotune")
    static = [one["TrainingJobDefinition"]["StaticHyperParameters"].keys() for one in (request, again)]
    assert static[0] == static[1]


def test_no_best_job_before_the_first_result(service, request_, home):
    service.tunings["digits-1"] = [described(request_)]
    service.trials["digits-1"] = [summary(1, status="InProgress"), summary(2, status="Failed")]
    with pytest.raises(InputError, match="no training job has a value of the objective metric yet"):
        HyperparameterTuner.attach("digits-1").best_training_job()


def test_changes_make_no_sense_for_a_search_of_sagemaker(service, request_, home):
    service.tunings["digits-1"] = [described(request_)]
    with pytest.raises(OptionError, match="environment: SageMaker has all settings"):
        HyperparameterTuner.attach("digits-1", environment={"A": "b"})


def test_a_search_of_several_estimators_shows_all_trials_but_has_no_one_estimator(service, project_folder):
    case = next(case for case in CASES if case["name"] == "two-estimators")
    service.tunings["digits-1"] = [described(own_request(case))]
    service.trials["digits-1"] = [
        summary(1, 0.9, TrainingJobDefinitionName="small"),
        summary(2, 0.8, TrainingJobDefinitionName="large", TunedHyperParameters={"depth": "3"}),
    ]
    tuning = ServiceTuning("digits-1", AwsSession())
    assert [record.values for record in tuning.trials()] == [{"lr": 0.01}, {"depth": 3}]
    assert tuning.definition().ranges.keys() == {"lr", "depth"}
    with pytest.raises(UnsupportedError, match="has several estimators: large, small"):
        tuning.estimator_plan()
