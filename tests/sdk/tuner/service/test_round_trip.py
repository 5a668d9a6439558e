"""Attach to the tuning jobs of AWS's SDK and of Herringbone; planned again, each is the same tuning job.

For each golden request of the peer, and for Herringbone's own request of the same call, the test writes the description
that SageMaker would return, and rebuilds the definition and the estimator's plan from it.
"""

import json

import pytest
from tests.sdk.tuner.service.calls import CASES, NAMES, own_request
from tests.sdk.tuner.service.test_peer import differing, peer_request
from tests.sdk.tuner.service.tunings import described, summary

import herringbone
from herringbone.backends.sagemaker.rebuild import rebuild
from herringbone.backends.sagemaker.request import training_job_request
from herringbone.plan.plan import parse_plan
from herringbone.plan.request import request_of
from herringbone.tuner.service.description import definition_of, training_description, trial_records
from herringbone.tuner.service.request import TuningPart, TuningSettings, tuning_request
from herringbone_contract.errors import UnsupportedError

ONE_ESTIMATOR = [
    case
    for case in CASES
    if not {"we_refuse", "they_refuse", "estimators"} & case.keys() and case["name"] != "estimator-name"
]
each_case = pytest.mark.parametrize("case", ONE_ESTIMATOR, ids=[case["name"] for case in ONE_ESTIMATOR])


@pytest.fixture(autouse=True)
def project(project_folder):
    pass


def request_again(request, case):
    description = json.loads(json.dumps(described(request)))
    plan = parse_plan(rebuild(training_description(description), request.get("Tags", ())).to_dict())
    new = getattr(herringbone, plan.estimator).of(request_of(plan)).plan(job_name=plan.job_name)
    part = TuningPart(
        definition=definition_of(description),
        request=training_job_request(new, NAMES),
        estimator=plan.estimator,
    )
    tuner = case.get("tuner", {})
    keep_static = tuple(tuner.get("hyperparameters_to_keep_static", ()))
    settings = TuningSettings(autotune="Autotune" in request, keep_static=keep_static)
    return tuning_request([part], settings)


@each_case
def test_own_tuning_jobs_are_the_same_after_attach(case):
    request = own_request(case)
    assert differing(request, request_again(request, case)) == set()


@each_case
def test_tuning_jobs_of_the_peer_are_the_same_after_attach(case):
    request = peer_request(case)
    differences = differing(request, request_again(request, case))
    # The peer lets SageMaker tune what starts the container; see cases.json.
    steering = {path for path in differences if "Autotune" in request and ".sagemaker_" in path}
    assert differences - steering - {"TrainingJobDefinition.StaticHyperParameters"} == set()


def test_values_of_trials_have_the_types_of_their_ranges():
    case = next(case for case in CASES if case["name"] == "all-ranges")
    texts = {
        "lr": "0.001",
        "momentum": "0.9",
        "decay": "0.5",
        "batch": "32",
        "layers": "3.0",
        "optimizer": '"sgd"',
        "width": '"64"',
        "bias": '"True"',
        "rate": '"0.1"',
    }
    record = trial_records([summary(1, 0.9, TunedHyperParameters=texts)], described(own_request(case)))[0]
    assert record.values == {
        "lr": 0.001,
        "momentum": 0.9,
        "decay": 0.5,
        "batch": 32,
        "layers": 3,
        "optimizer": "sgd",
        "width": "64",
        "bias": "True",
        "rate": "0.1",
    }
    assert all(
        values.is_valid(record.values[name])
        for name, values in definition_of(described(own_request(case))).ranges.items()
    )


def test_the_epochs_of_hyperband_are_the_trials_resource():
    case = next(case for case in CASES if case["name"] == "hyperband")
    case = {**case, "arguments": {**case["arguments"], "hyperparameters": {"epochs": 27}}}
    description = described(own_request(case), "Completed")
    tuned = {"lr": "0.01", "epochs": "3"}
    record = trial_records([summary(1, 0.9, "Stopped", TunedHyperParameters=tuned)], description)[0]
    assert (record.values, record.resource, record.early_stopped) == ({"lr": 0.01}, 3, True)
    # The user stopped the search, and with it the trial.
    description["HyperParameterTuningJobStatus"] = "Stopped"
    assert not trial_records([summary(1, 0.9, "Stopped", TunedHyperParameters=tuned)], description)[0].early_stopped


def test_a_trial_without_instances_of_one_type_has_no_estimator():
    request = own_request(CASES[0])
    trial = request["TrainingJobDefinition"]
    trial["HyperParameterTuningResourceConfig"] = {"InstanceConfigs": [{"InstanceType": "ml.m5.large"}]}
    with pytest.raises(UnsupportedError, match="several instance types"):
        training_description(described(request))
