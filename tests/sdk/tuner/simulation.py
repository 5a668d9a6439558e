"""A search without jobs: trials report what a function says, and end in the order that a test chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from herringbone.tuner.definition import TuningDefinition, check_local, define
from herringbone.tuner.parameters import ContinuousParameter
from herringbone.tuner.strategies.choose import strategy_for
from herringbone.tuner.strategies.early_stopping import judged, stops
from herringbone.tuner.trials import Proposal, Trial, TrialState

EPOCHS = 27
RANGES = {
    "lr": ContinuousParameter(1e-5, 1.0, "Logarithmic"),
    "momentum": ContinuousParameter(0.0, 0.999, "ReverseLogarithmic"),
}
Objective = Callable[[dict[str, Any], int], float]


def search_of(strategy: str, **settings: Any) -> TuningDefinition:
    """Return the definition of a search over a learning rate and a momentum, with some settings."""
    values = {"name": "digits", "metric": "accuracy", "ranges": RANGES, "static": {"epochs": EPOCHS}, "seed": 7}
    definition = define({**values, "strategy": strategy, "max_jobs": 12, "max_parallel_jobs": 4, **settings})
    check_local(definition)
    return definition


def bowl(values: dict[str, Any], epoch: int) -> float:
    """Return a smooth objective that is best at lr=0.005, momentum=0.93, and rises with the epochs."""
    distance = (math.log10(values["lr"]) + 2.3) ** 2 + ((values["momentum"] - 0.93) * 8) ** 2
    # Small learning rates rise late.
    return -distance * (1 + 0.3 / epoch) - 1 / (epoch * (0.2 + values["lr"]))


def run(
    definition: TuningDefinition,
    objective: Objective = bowl,
    *,
    order: int = 0,
    fails: Sequence[int] = (),
    fewer: bool = False,
) -> list[Trial]:
    """Return the judged trials of a whole search.

    `order` is the seed of the order in which running trials report and end. `fails` are numbers of trials that crash.
    With `fewer`, the machine is often too busy for as many trials as `max_parallel_jobs` allows.
    """
    strategy = strategy_for(definition)
    source = random.Random(order)
    trials: list[Trial] = []
    while True:
        running = [trial.number for trial in trials if trial.state is TrialState.IN_PROGRESS]
        free = definition.max_parallel_jobs - len(running)
        if fewer and running:
            free = source.randint(0, free)
        proposals = strategy.propose(judged(definition, trials), free)
        assert len(proposals) <= free
        trials += [Trial(proposal, state=TrialState.IN_PROGRESS) for proposal in proposals]
        running += [proposal.number for proposal in proposals]
        if not running:
            return judged(definition, trials)
        number = source.choice(running)
        trials[number] = _report(definition, trials, trials[number], objective, number in fails)
        for stopped in stops(definition, trials):
            # A stop is often late.
            if source.random() < 0.5:
                trials[stopped] = _replaced(trials[stopped], state=TrialState.STOPPED)


def _report(
    definition: TuningDefinition, trials: Sequence[Trial], trial: Trial, objective: Objective, fails: bool
) -> Trial:
    proposal = trial.proposal
    last = proposal.resource or EPOCHS
    first = 1 if proposal.resumes is None else (trials[proposal.resumes].proposal.resource or 0) + 1
    epoch = first + len(trial.curve)
    if fails:
        return _replaced(trial, state=TrialState.FAILED)
    # Two parts, so that trials overlap.
    ends = last if trial.curve or definition.early_stopping_type == "Off" else (first + last) // 2
    curve = trial.curve + tuple(objective(proposal.values, at) for at in range(epoch, ends + 1))
    return _replaced(trial, curve=curve, state=TrialState.COMPLETED if ends == last else TrialState.IN_PROGRESS)


def _replaced(trial: Trial, **changes: Any) -> Trial:
    members = {name: getattr(trial, name) for name in Trial.__struct_fields__}
    return Trial(**{**members, **changes})


def proposals_of(trials: Sequence[Trial]) -> list[Proposal]:
    """Return the proposals of trials."""
    return [trial.proposal for trial in trials]


def epochs_of(trials: Sequence[Trial]) -> int:
    """Return how many epochs were trained; a job that continues another one trains only the rest."""
    total = 0
    for trial in trials:
        earlier = trial.proposal.resumes
        total += trial.proposal.resource or EPOCHS
        total -= 0 if earlier is None else trials[earlier].proposal.resource or 0
    return total
