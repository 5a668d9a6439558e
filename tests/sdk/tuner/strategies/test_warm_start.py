"""Warm starts: the results that count, the trials that they begin with, and the parents that are refused."""

import pytest
from tests.sdk.tuner.simulation import proposals_of, run, search_of

from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial, define
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone.tuner.strategies.warm_start import first_configurations, overall_best, prior_trials
from herringbone.tuner.trials import Proposal, Trial, TrialState, best
from herringbone_contract.errors import OptionError

IDENTICAL, TRANSFER = WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM, WarmStartTypes.TRANSFER_LEARNING
LR = ContinuousParameter(0.0, 1.0, "Linear")


def search(kind=IDENTICAL, parents=("first",), **settings):
    warm = {} if kind is None else {"warm_start_type": kind, "parents": parents}
    values = {"name": "digits", "metric": "accuracy", "ranges": {"lr": LR}, "seed": 1, "strategy": "Random"}
    return define({**values, **warm, **settings})


def parent(name="first", **settings):
    return search(None, name=name, **settings)


def ended(number, objective, state=TrialState.COMPLETED, resource=None, **values):
    return Trial(Proposal(number, values, resource), f"first-{number + 1:03d}", state, objective)


def test_results_that_this_search_can_use():
    trials = [
        ended(0, 0.5, lr=0.1),
        ended(1, None, TrialState.FAILED, lr=0.2),
        ended(2, 0.7, TrialState.STOPPED, lr=0.3),
        ended(3, 0.9, lr=5.0),
    ]
    wider = parent(ranges={"lr": ContinuousParameter(0.0, 9.0)})
    priors = prior_trials(search(), {"first": (wider, trials)})
    assert priors == (
        PriorTrial({"lr": 0.1}, 0.5, "first", "first-001"),
        PriorTrial({"lr": 0.3}, 0.7, "first", "first-003"),
    )


def test_what_was_shared_and_is_tuned_now():
    earlier = parent(ranges={"lr": LR}, static={"layers": 3})
    now = search(ranges={"lr": LR, "layers": IntegerParameter(1, 5)})
    assert prior_trials(now, {"first": (earlier, [ended(0, 0.5, lr=0.1)])}) == (
        PriorTrial({"lr": 0.1, "layers": 3}, 0.5, "first", "first-001"),
    )


def test_only_whole_trials_of_hyperband_count():
    trials = [ended(0, 0.9, resource=1, lr=0.1), ended(1, 0.5, resource=9, lr=0.2)]
    assert [prior.objective for prior in prior_trials(search(), {"first": (parent(), trials)})] == [0.5]


@pytest.mark.parametrize(
    ("earlier", "trials", "message"),
    [
        (None, [], "no tuning job 'first' here"),
        (parent(metric="loss"), [], "searched to Maximize 'loss', this search to Maximize 'accuracy'"),
        (parent(objective_type="Minimize"), [], "the objective must be the same"),
        (
            parent(ranges={"lr": CategoricalParameter([0.1])}),
            [],
            "'lr' was CategoricalParameter in 'first' and is Cont",
        ),
        (parent(static={"batch": 8}), [], "batch: only one of 'first' and this search has this hyperparameter"),
        (parent(), [Trial(Proposal(0, {}), state=TrialState.IN_PROGRESS)], "'first' still runs"),
    ],
)
def test_parents_that_are_refused(earlier, trials, message):
    with pytest.raises(OptionError, match=message):
        prior_trials(search(), {} if earlier is None else {"first": (earlier, trials)})


def test_more_changes_than_sagemaker_takes():
    names = [f"p{number}" for number in range(11)]
    earlier = parent(static=dict.fromkeys(names, 0.5))
    now = search(ranges={"lr": LR, **dict.fromkeys(names, LR)})
    with pytest.raises(OptionError, match="11 hyperparameters are tuned in only one of 'first' and this search"):
        prior_trials(now, {"first": (earlier, [])})


def test_a_transfer_begins_with_the_best_of_each_parent():
    priors = (
        PriorTrial({"lr": 0.1}, 100.0, "first"),
        PriorTrial({"lr": 0.2}, 300.0, "first"),
        PriorTrial({"lr": 0.3}, 0.3, "second"),
        PriorTrial({"lr": 0.4}, 0.1, "second"),
    )
    definition = search(TRANSFER, ("first", "second"), priors=priors, max_jobs=12)
    assert first_configurations(definition) == [{"lr": 0.2}, {"lr": 0.3}, {"lr": 0.1}]
    trials = run(definition, lambda values, epoch: -values["lr"])
    assert [proposal.values["lr"] for proposal in proposals_of(trials)][:3] == [0.2, 0.3, 0.1]
    # Their objectives are those of other data.
    assert overall_best(definition, trials) == best(trials, "Maximize")


def test_a_short_transfer_tries_one_of_the_parents():
    definition = search(TRANSFER, priors=(PriorTrial({"lr": 0.2}, 1.0, "first"),), max_jobs=1)
    assert [proposal.values for proposal in proposals_of(run(definition, lambda values, epoch: 0.0))] == [{"lr": 0.2}]


def test_random_search_does_not_repeat_identical_parents():
    few = {"lr": IntegerParameter(1, 12)}
    priors = tuple(PriorTrial({"lr": number}, 0.0, "first") for number in range(1, 8))
    trials = run(search(ranges=few, priors=priors, max_jobs=4), lambda values, epoch: 0.0)
    assert {proposal.values["lr"] for proposal in proposals_of(trials)} <= set(range(8, 13))


def test_the_overall_best_may_be_a_parents():
    prior = PriorTrial({"lr": 0.2}, 0.9, "first")
    definition = search(priors=(prior,), max_jobs=2)
    assert overall_best(definition, [ended(0, 0.5, lr=0.1)]) == prior
    assert overall_best(definition, [ended(0, 0.95, lr=0.1)]) == ended(0, 0.95, lr=0.1)
    assert overall_best(search_of("Random"), []) is None
