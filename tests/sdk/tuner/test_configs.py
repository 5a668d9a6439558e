"""The settings that are objects: SageMaker's members of the request, and what is refused."""

import pytest

from herringbone.tuner.configs import (
    HyperbandStrategyConfig,
    StrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartConfig,
    WarmStartTypes,
)
from herringbone_contract.errors import OptionError


def test_members_of_the_request():
    assert WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, {"b", "a"}).to_input_req() == {
        "WarmStartType": "TransferLearning",
        "ParentHyperParameterTuningJobs": [
            {"HyperParameterTuningJobName": "a"},
            {"HyperParameterTuningJobName": "b"},
        ],
    }
    assert StrategyConfig(HyperbandStrategyConfig(27, 3)).to_input_req() == {
        "HyperbandStrategyConfig": {"MinResource": 3, "MaxResource": 27}
    }
    assert TuningJobCompletionCriteriaConfig(5, True, 0.5).to_input_req() == {
        "BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 5},
        "ConvergenceDetected": {"CompleteOnConvergence": "Enabled"},
        "TargetObjectiveMetricValue": 0.5,
    }


def test_a_name_of_ours_is_not_sent():
    assert HyperbandStrategyConfig(9, resource_name="steps").to_input_req() == {"MinResource": 1, "MaxResource": 9}


def test_one_parent_may_be_a_text():
    assert WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, "first").parents == {"first"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WarmStartConfig("TransferLearning", {"a"}), "give one of WarmStartTypes.IDENTICAL"),
        (lambda: WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, set()), "1 to 5 tuning jobs"),
        (lambda: WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, set("abcdef")), "1 to 5 tuning jobs"),
        (lambda: HyperbandStrategyConfig(max_resource=0), "max_resource=0; give a whole number, 1 to 20000"),
        (lambda: HyperbandStrategyConfig(max_resource=20_001), "max_resource=20001"),
        (lambda: HyperbandStrategyConfig(9, 1.5), "min_resource=1.5"),
        (lambda: HyperbandStrategyConfig(9, 10), "min_resource=10 is above max_resource=9"),
        (lambda: TuningJobCompletionCriteriaConfig(2), "at least 3"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
