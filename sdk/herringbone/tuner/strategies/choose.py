"""Make the strategy that a definition names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.draws import Grid, Random
from herringbone.tuner.strategies.hyperband import Hyperband
from herringbone.tuner.strategies.order import Choice, InOrder
from herringbone.tuner.trials import Proposal, Trial
from herringbone_contract.errors import UnsupportedError


class Strategy(Protocol):
    """A way to choose the next trials. A pure function of the definition and of results, without memory or clock.

    >>> strategy_for(definition).propose(trials, free=4)        # doctest: +SKIP
    """

    def propose(self, trials: Sequence[Trial], free: int) -> list[Proposal]:
        """Return at most `free` new proposals; `trials` are all so far, the trial of number k at index k.

        An empty list while trials run means: wait for one. An empty list when all trials are over means: the search is
        finished. Calling it with fewer `free`, more often, or in another order of ends gives the same proposals.
        """
        ...


class _AllAtOnce:
    """A strategy whose trials depend on no result."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice

    def propose(self, trials: Sequence[Trial], free: int) -> list[Proposal]:
        """Return at most `free` new proposals; see `Strategy`."""
        proposals = [trial.proposal for trial in trials]
        while len(proposals) < len(trials) + free and self._choice.is_ready(proposals, ()):
            proposals.append(self._choice.choose(proposals, ()))
        return proposals[len(trials) :]


def strategy_for(definition: TuningDefinition) -> Strategy:
    """Return the strategy of a definition that `check_local` accepts.

    >>> strategy_for(definition).propose([], free=2)        # doctest: +SKIP

    Raises `UnsupportedError` for Bayesian without the extra `tune`.
    """
    if definition.strategy == "Hyperband":
        return InOrder(definition, Hyperband(definition))
    if definition.strategy == "Bayesian":
        return InOrder(definition, _bayesian(definition))
    choice = Grid(definition) if definition.strategy == "Grid" else Random(definition)
    # A trial that is stopped by comparison, or the end of the search, depends on earlier results.
    if definition.early_stopping_type == "Auto" or definition.completion is not None:
        return InOrder(definition, choice)
    return _AllAtOnce(choice)


def _bayesian(definition: TuningDefinition) -> Choice:
    try:
        # Optuna takes half a second to import.
        from herringbone.tuner.strategies.bayesian import Bayesian
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UnsupportedError(
            "strategy: Bayesian search needs Optuna: run pip install '.[tune]' in your clone of Herringbone; or choose"
            " Random or Hyperband"
        ) from error
    return Bayesian(definition)


def copy_for(definition: TuningDefinition, path: Path) -> Callable[[Sequence[Trial]], None]:
    """Return a function that brings the copy of the trials for Optuna's dashboard up to date.

    >>> copy_for(definition, folder / "optuna.journal")(judged(definition, trials))     # doctest: +SKIP

    It does nothing for strategies that work without Optuna.
    """
    if definition.strategy != "Bayesian":
        return lambda _: None
    from herringbone.tuner.strategies.optuna_file import OptunaFile

    return OptunaFile(path, definition).write
