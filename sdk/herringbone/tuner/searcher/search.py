"""Decide the next steps of a search from its definition and its trials. Pure.

    trials -> judged -> strategy.propose -> Submit
       |        |
       |        +-----> none proposed, none running -> Finish
       +-> stops -----> Stop

`step` may be asked at any time and any number of times: it decides from what is stored, so a search that was killed
goes on with the step that it would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from herringbone.records.index import COMPLETED, FAILED
from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.completion import completion_reason
from herringbone.tuner.strategies.early_stopping import judged, stops
from herringbone.tuner.trials import Proposal, Trial, TrialState

# Without a result of the first trials, none is to be expected of the others. SageMaker gives up, too.
HOPELESS_TRIALS = 5

# `Strategy.propose`: judged trials and the number of jobs that may start -> proposals.
Propose = Callable[[Sequence[Trial], int], Sequence[Proposal]]


@dataclass(frozen=True, slots=True)
class Submit:
    """Start the job of a proposal."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the job of a running trial; `early` by the rule of early stopping, otherwise because the search ends."""

    number: int
    early: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """End the search with a status, and the reason unless it completed."""

    status: str
    reason: str | None = None


Action = Submit | Stop | Finish


def step(
    definition: TuningDefinition,
    trials: Sequence[Trial],
    propose: Propose,
    *,
    stopping: Collection[int] = (),
    ending: Finish | None = None,
) -> list[Action]:
    """Return what to do next; [] means to wait for a running trial.

    >>> step(definition, [], strategy_for(definition).propose)         # doctest: +SKIP
    [Submit(proposal=Proposal(number=0, values={'lr': 0.01}))]

    `stopping` are the numbers of running trials that were asked to stop. With `ending`, running trials are stopped, no
    other one starts, and then the search finishes in this way.
    """
    running = [trial for trial in trials if not trial.state.is_over]
    results = judged(definition, trials)
    ending = ending or _hopeless(definition, results)
    if ending is not None:
        return [Stop(trial.number) for trial in running if trial.number not in stopping] if running else [ending]
    actions: list[Action] = [Stop(number, early=True) for number in stops(definition, trials) if number not in stopping]
    proposals = propose(results, max(definition.max_parallel_jobs - len(running), 0))
    actions += [Submit(proposal) for proposal in proposals]
    if not running and not proposals:
        return [_end(definition, results)]
    return actions


def _end(definition: TuningDefinition, trials: Sequence[Trial]) -> Finish:
    if any(trial.has_result for trial in trials):
        return Finish(COMPLETED, completion_reason(definition, trials))
    return Finish(FAILED, _no_result(definition, trials))


def _hopeless(definition: TuningDefinition, trials: Sequence[Trial]) -> Finish | None:
    first = trials[:HOPELESS_TRIALS]
    if len(first) < HOPELESS_TRIALS or not all(trial.state.is_over for trial in first):
        return None
    return None if any(trial.has_result for trial in trials) else Finish(FAILED, _no_result(definition, first))


def no_result_yet(definition: TuningDefinition, trials: Sequence[Trial]) -> str | None:
    """Return why the trials that are over have no result, and what to do; None if one has, or if none is over."""
    over = [trial for trial in trials if trial.state.is_over]
    return _no_result(definition, over) if over and not any(trial.has_result for trial in over) else None


def _no_result(definition: TuningDefinition, trials: Sequence[Trial]) -> str:
    failed = sum(trial.state is TrialState.FAILED for trial in trials)
    if failed:
        job = next(trial.job_name for trial in trials if trial.state is TrialState.FAILED)
        return f"no training job succeeded: {failed} of {len(trials)} failed; the first one: herringbone describe {job}"
    return (
        f"none of {len(trials)} training jobs reported the objective metric {definition.metric!r}; let the script call "
        f"log_metrics({definition.metric}=...), or give metric_definitions whose Regex matches a line of the log"
    )
