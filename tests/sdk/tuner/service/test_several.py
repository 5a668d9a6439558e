"""Search several estimators in one tuning job: the same request as AWS's SDK, and refusals by name."""

from __future__ import annotations

import json

import pytest
from tests.sdk.tuner.service.calls import CASES, RANGES
from tests.sdk.tuner.service.test_peer import differing, peer_request
from tests.sdk.tuner.service.tunings import described, summary

import herringbone
from herringbone.api.tuner import HyperparameterTuner
from herringbone.tuner.parameters import IntegerParameter
from herringbone_contract.errors import OptionError, UnsupportedError

pytest.importorskip("botocore", reason="the extra aws is not installed")
CASE = next(case for case in CASES if case["name"] == "two-estimators")


@pytest.fixture(autouse=True)
def project(project_folder, home):
    pass


def estimator(name, **changes):
    entry = CASE["estimators"][name]
    return getattr(herringbone, entry["estimator"])(**{**entry["arguments"], **changes})


def tuner_of(**changes):
    ranges = {
        name: {key: RANGES[kind](*rest) for key, (kind, *rest) in entries.items()}
        for name, entries in CASE["ranges"].items()
    }
    settings = {
        "estimator_dict": {name: estimator(name) for name in CASE["estimators"]},
        "hyperparameter_ranges_dict": ranges,
        **CASE["tuner"],
    }
    return HyperparameterTuner.create(**{**settings, **changes})


def test_the_planned_request_is_that_of_awss_sdk():
    own, peer = tuner_of().plan(CASE["inputs"], job_name="digits-1").request, peer_request(CASE)
    # Offline, region and bucket are not known.
    account = ("sagemaker_submit_directory", "sagemaker_region", "S3OutputPath")
    assert {path for path in differing(own, peer) if not path.endswith(account)} == set()


def test_positional_dicts_as_with_awss_sdk():
    settings = dict(CASE["tuner"])
    dicts = [
        {name: estimator(name) for name in ("small", "large")},
        settings.pop("objective_metric_name_dict"),
        {name: {"depth": IntegerParameter(1, 3)} for name in ("small", "large")},
        settings.pop("metric_definitions_dict"),
    ]
    request = HyperparameterTuner.create(*dicts, **settings).plan(job_name="digits-1").request
    ranges = [one["HyperParameterRanges"]["IntegerParameterRanges"] for one in request["TrainingJobDefinitions"]]
    assert [[entry["Name"] for entry in one] for one in ranges] == [["depth"], ["depth"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective_metric_name_dict": {"small": "loss"}}, r"objective_metric_name_dict: has the keys \['small'\]"),
        ({"hyperparameter_ranges_dict": {}}, r"hyperparameter_ranges_dict: has the keys \[\]"),
        ({"metric_definitions_dict": {"huge": []}}, "metric_definitions_dict: 'huge' is no key"),
        ({"estimator_dict": {}}, "estimator_dict: empty"),
        ({"autotune": True}, "autotune: Herringbone sends it for one estimator"),
        ({"max_jbos": 3}, "max_jbos: no such option"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises((OptionError, UnsupportedError), match=message):
        tuner_of(**changes)


def test_own_hosts_search_one_estimator():
    here = herringbone.PyTorch("train.py", instance_type="local_process")
    with pytest.raises(UnsupportedError, match=r"only SageMaker .* 'large' runs on local_process"):
        tuner_of(estimator_dict={"small": estimator("small"), "large": here})


def test_inputs_have_the_estimators_names():
    with pytest.raises(OptionError, match="inputs: give a dict with the inputs of each estimator, by its name: small"):
        tuner_of().plan({"small": "s3://data/train"})


def test_a_name_that_sagemaker_does_not_take():
    twice = {"one": estimator("small"), "under_score": estimator("large")}
    metric = {"one": "accuracy", "under_score": "accuracy"}
    ranges = {name: {"depth": IntegerParameter(1, 3)} for name in twice}
    definitions = dict.fromkeys(twice, CASE["tuner"]["metric_definitions_dict"]["small"])
    tuner = HyperparameterTuner.create(twice, metric, ranges, definitions)
    with pytest.raises(OptionError, match=r"TrainingJobDefinitions\[1\]\.DefinitionName does not match"):
        tuner.plan()


def test_the_best_estimator_is_the_one_of_the_best_trial(service):
    request = tuner_of().plan(CASE["inputs"], job_name="digits-1").request
    best = summary(2, 0.9, TrainingJobDefinitionName="large", TunedHyperParameters={"depth": "3"})
    service.tunings["digits-1"] = [described(request, "Completed", BestTrainingJob=best)]
    service.trials["digits-1"] = [summary(1, 0.8, TrainingJobDefinitionName="small"), best]
    trial = next(one for one in request["TrainingJobDefinitions"] if one["DefinitionName"] == "large")
    hyperparameters = {**trial["StaticHyperParameters"], "depth": "3", "_tuning_objective_metric": "accuracy"}
    hyperparameters["sagemaker_submit_directory"] = json.dumps("s3://bucket/code.tar.gz")
    from tests.sagemaker.service import described as described_job

    service.jobs[best["TrainingJobName"]] = [
        described_job(
            best["TrainingJobName"],
            TrainingJobStatus="Completed",
            SecondaryStatus="Completed",
            HyperParameters=hyperparameters,
            AlgorithmSpecification=trial["AlgorithmSpecification"],
        )
    ]
    tuner = tuner_of()
    from herringbone.tuner.service.tuning import attach_tuning

    tuner._tuning = attach_tuning("digits-1")
    assert tuner.best_training_job() == best["TrainingJobName"]
    chosen = tuner.best_estimator()
    assert type(chosen) is herringbone.PyTorch
    assert chosen._request.arguments.hyperparameters == {"depth": 3, "epochs": 2}
    assert [row["depth"] for row in tuner.analytics().rows()] == [None, 3]
