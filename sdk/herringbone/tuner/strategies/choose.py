"""Make the strategy that a definition names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from herringbone.tuner.definition import TuningDefinition
from herringbone.tuner.strategies.base import Strategy
from herringbone.tuner.strategies.hyperband import Hyperband
from herringbone.tuner.strategies.order import Choice, InOrder
from herringbone.tuner.strategies.random_search import Grid, Random, all_at_once
from herringbone.tuner.trials import Proposal, Trial
from herringbone_contract.errors import UnsupportedError


class _AllAtOnce:
    """A strategy whose trials depend on no result."""

    def __init__(self, choice: Random | Grid) -> None:
        self._choice = choice

    def propose(self, trials: Sequence[Trial], free: int) -> list[Proposal]:
        """Return at most `free` new proposals; see `Strategy`."""
        return all_at_once(self._choice, trials, free)


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
