"""The definition of a search: what is refused, with value and remedy, and what a trial gets."""

import msgspec
import pytest

from herringbone.tuner.configs import (
    HyperbandStrategyConfig,
    TuningJobCompletionCriteriaConfig,
    WarmStartTypes,
)
from herringbone.tuner.definition import TuningDefinition, check_local, define
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone_contract.errors import OptionError, UnsupportedError

LR = {"lr": ContinuousParameter(1e-4, 1e-1)}
GRID = {"a": CategoricalParameter([1, 2, 3]), "b": CategoricalParameter(["x", "y"])}


def definition_of(**settings):
    return define({"name": "digits", "metric": "accuracy", "ranges": LR, "seed": 1, **settings})


def test_a_definition_survives_json():
    definition = definition_of(
        static={"epochs": 3},
        strategy="Hyperband",
        hyperband=HyperbandStrategyConfig(9),
        completion=TuningJobCompletionCriteriaConfig(target_objective_metric_value=0.9),
    )
    assert msgspec.json.decode(msgspec.json.encode(definition), type=TuningDefinition) == definition


def test_the_number_of_jobs_when_none_is_given():
    assert definition_of().job_limit == 1
    assert definition_of(strategy="Grid", ranges=GRID).job_limit == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "a" * 33}, "at most 32 characters"),
        ({"name": "-a"}, "letters, digits and single hyphens"),
        ({"name": "a_b"}, "letters, digits and single hyphens"),
        ({"ranges": {}}, "0 ranges; give 1 to 30, or autotune=True"),
        ({"ranges": {"lr": 0.1}}, r"hyperparameter_ranges: 'lr' is 0.1; give ContinuousParameter\(0.001, 0.1\)"),
        ({"ranges": {1: LR["lr"]}}, "hyperparameter_ranges: "),
        ({"metric": 1}, "objective_metric_name: expected str, got int"),
        ({"static": {"lr": 0.1}}, "'lr' is also static"),
        ({"strategy": "bayesian"}, "strategy: 'bayesian' is none of 'Bayesian', 'Grid', 'Hyperband', 'Random'"),
        ({"strategy": "Gird"}, r"'Hyperband', 'Random', did you mean 'Grid'\? \(given: 'Gird'\)"),
        ({"objective_type": "Max"}, "objective_type: 'Max' is none of 'Maximize', 'Minimize'"),
        ({"max_jobs": 0}, "max_jobs: expected int >= 1"),
        ({"max_jobs": 10_001}, "max_jobs: 10001; give at most 10000"),
        ({"max_parallel_jobs": "4"}, "max_parallel_jobs: expected int, got str"),
        ({"early_stopping_type": "On"}, "early_stopping_type: 'On' is none of 'Auto', 'Off'"),
        ({"seed": -1}, "random_seed: expected int >= 0"),
        ({"strategy": "Grid"}, "'lr' is of ContinuousParameter; Grid takes CategoricalParameter only"),
        ({"strategy": "Grid", "ranges": GRID, "max_jobs": 5}, "the grid has 6 combinations"),
        ({"hyperband": HyperbandStrategyConfig(9)}, "strategy='Hyperband', not 'Bayesian'"),
        ({"strategy": "Hyperband", "early_stopping_type": "Auto"}, "write early_stopping_type='Off'"),
        ({"parents": ("a",)}, "give both a type and parents"),
        (
            {"parents": ("a",), "warm_start_type": WarmStartTypes.TRANSFER_LEARNING, "strategy": "Hyperband"},
            "strategy='Hyperband' uses no earlier results; use Bayesian",
        ),
    ],
)
def test_what_no_backend_takes(settings, message):
    with pytest.raises(OptionError, match=message):
        definition_of(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": None}, "seed: .* needs one"),
        ({"strategy": "Hyperband"}, r"hyperparameters=\{'epochs': 27\}"),
        ({"strategy": "Hyperband", "static": {"epochs": "27"}}, "largest number of epochs is '27'"),
        (
            {"strategy": "Hyperband", "static": {"epochs": 3}, "hyperband": HyperbandStrategyConfig(min_resource=5)},
            "is 3; give .* at least min_resource=5",
        ),
        (
            {
                "strategy": "Hyperband",
                "ranges": {"steps": IntegerParameter(1, 9)},
                "hyperband": HyperbandStrategyConfig(9, resource_name="steps"),
            },
            "take it out of the ranges",
        ),
        (
            {
                "strategy": "Hyperband",
                "static": {"epochs": 3},
                "completion": TuningJobCompletionCriteriaConfig(max_number_of_training_jobs_not_improving=3),
            },
            "use target_objective_metric_value",
        ),
    ],
)
def test_what_a_local_search_refuses(settings, message):
    with pytest.raises(OptionError, match=message):
        check_local(definition_of(**settings))


def test_a_rule_that_aws_keeps_to_itself_is_refused():
    criteria = TuningJobCompletionCriteriaConfig(complete_on_convergence=True)
    with pytest.raises(UnsupportedError, match=r"for ml\.\* only; use max_number_of_training_jobs_not_improving"):
        check_local(definition_of(completion=criteria))
    check_local(definition_of(completion=TuningJobCompletionCriteriaConfig(complete_on_convergence=False)))


def test_the_epochs_may_have_another_name():
    config = HyperbandStrategyConfig(max_resource=90, min_resource=10, resource_name="max_steps")
    definition = definition_of(strategy="Hyperband", hyperband=config)
    check_local(definition)
    assert definition.resources == (10, 90)
    assert definition.resource_name == "max_steps"


def test_the_epochs_are_those_of_the_hyperparameter():
    definition = definition_of(strategy="Hyperband", static={"batch": 8, "n_epochs": 27})
    check_local(definition)
    assert (definition.resource_name, definition.resources) == ("n_epochs", (1, 27))
