"""Begin a search with the results of earlier ones. Pure.

`IdenticalDataAndAlgorithm`: their results are results of this search, which learns from them and does not repeat them.
`TransferLearning`: data or code have changed, so their objectives mean nothing here; their best configurations are the
first trials of this search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from herringbone.tuner.configs import WarmStartTypes
from herringbone.tuner.definition import PriorTrial, TuningDefinition
from herringbone.tuner.parameters import ParameterRange
from herringbone.tuner.trials import Trial, gain
from herringbone_contract.errors import OptionError

# The part of a search that goes to configurations of its parents, at least one trial.
_TRANSFERRED = 4
_MAX_MOVED = 10


def prior_trials(
    definition: TuningDefinition, parents: Mapping[str, tuple[TuningDefinition, Sequence[Trial]]]
) -> tuple[PriorTrial, ...]:
    """Return the results of the parents that this search can use, for `definition.priors`.

    `parents` has the definition and the judged trials of each parent. A trial counts if it has a result, a value for
    each tuned hyperparameter, tuned or shared then, and lies in today's ranges; of a Hyperband search, if it had all
    epochs. Raises `OptionError` where SageMaker would refuse the parents.
    """
    priors = []
    for name in definition.parents:
        if name not in parents:
            raise OptionError(
                f"warm_start_config: there is no tuning job {name!r} here; `herringbone tune ls` lists all"
            )
        parent, trials = parents[name]
        _check_parent(definition, parent)
        if running := [trial for trial in trials if not trial.state.is_over]:
            raise OptionError(
                f"warm_start_config: {name!r} still runs ({len(running)} trials); wait for it, or stop it first"
            )
        most = max((trial.proposal.resource or 0 for trial in trials), default=0)
        for trial in trials:
            known = {**parent.static, **trial.proposal.values}
            values = {key: known[key] for key in definition.ranges if key in known}
            if not trial.has_result or (trial.proposal.resource or 0) != most or trial.objective is None:
                continue
            if len(values) == len(definition.ranges) and _lies_in(values, definition.ranges):
                priors.append(PriorTrial(values, trial.objective, name, trial.job_name))
    return tuple(priors)


def known_results(definition: TuningDefinition) -> tuple[PriorTrial, ...]:
    """Return the earlier results that count as results of this search."""
    is_identical = definition.warm_start_type is WarmStartTypes.IDENTICAL_DATA_AND_ALGORITHM
    return definition.priors if is_identical else ()


def first_configurations(definition: TuningDefinition) -> list[dict[str, Any]]:
    """Return the configurations that a transfer begins with: the best of each parent in turn, each once."""
    if definition.warm_start_type is not WarmStartTypes.TRANSFER_LEARNING:
        return []
    sign = 1 if definition.objective_type == "Maximize" else -1
    ranked = []
    for parent in definition.parents:
        results = [prior for prior in definition.priors if prior.parent == parent]
        # Ranks, because objectives of two data sets cannot be compared.
        ranked += list(enumerate(sorted(results, key=lambda prior: -sign * prior.objective)))
    configurations: list[dict[str, Any]] = []
    for _, prior in sorted(ranked, key=lambda item: item[0]):
        if prior.values not in configurations:
            configurations.append(prior.values)
    return configurations[: max(definition.job_limit // _TRANSFERRED, 1)]


def overall_best(definition: TuningDefinition, trials: Sequence[Trial]) -> PriorTrial | Trial | None:
    """Return the best of this search's trials and, if data and algorithm are theirs, of its parents' trials."""
    results: list[PriorTrial | Trial] = [trial for trial in trials if trial.has_result]
    results += known_results(definition)

    def rank(result: PriorTrial | Trial) -> float:
        if isinstance(result, Trial):
            return gain(result, definition.objective_type)
        return result.objective if definition.objective_type == "Maximize" else -result.objective

    return max(results, key=rank, default=None)


def _check_parent(definition: TuningDefinition, parent: TuningDefinition) -> None:
    name = parent.name
    if (parent.metric, parent.objective_type) != (definition.metric, definition.objective_type):
        raise OptionError(
            f"warm_start_config: {name!r} searched to {parent.objective_type} {parent.metric!r}, this search to"
            f" {definition.objective_type} {definition.metric!r}; the objective must be the same"
        )
    for key in definition.ranges.keys() & parent.ranges.keys():
        was, now = type(parent.ranges[key]).__name__, type(definition.ranges[key]).__name__
        if was != now:
            raise OptionError(f"warm_start_config: {key!r} was {was} in {name!r} and is {now} now; its type must stay")
    before, after = ({*job.static, *job.ranges} for job in (parent, definition))
    if changed := sorted(before ^ after):
        raise OptionError(
            f"warm_start_config: {', '.join(changed)}: only one of {name!r} and this search has this hyperparameter; a"
            " parent must have the same ones, tuned or not"
        )
    moved = definition.ranges.keys() ^ parent.ranges.keys()
    if len(moved) > _MAX_MOVED:
        raise OptionError(
            f"warm_start_config: {len(moved)} hyperparameters are tuned in only one of {name!r} and this search;"
            f" SageMaker takes {_MAX_MOVED}"
        )


def _lies_in(values: Mapping[str, Any], ranges: Mapping[str, ParameterRange]) -> bool:
    def lies_in(value: Any, values: ParameterRange) -> bool:
        try:
            return values.is_valid(value)
        except TypeError:
            # A text in a range of numbers.
            return False

    return all(lies_in(values[name], ranges[name]) for name in ranges)
