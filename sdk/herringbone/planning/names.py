"""Names of a user's that would be lost without a word: Herringbone, or another setting, has them too. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from herringbone.estimators.inputs import Channel
from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.errors import HyperparameterError, OptionError
from herringbone_contract.hyperparameters import carries_distribution, check_user_values, split
from herringbone_contract.launcher import Launcher
from herringbone_contract.variables import named_variables, own_variables

_STEERING = {value for name, value in vars(Key).items() if name.isupper()} - {Key.TUNING_METRIC}


def check_hyperparameters(values: Mapping[str, object], added: Collection[str], *, is_script: bool) -> None:
    """Raise `HyperparameterError` for hyperparameters that a script would not get as its user wrote them.

    `added` are those that Herringbone adds. An image's own program gets all of them, and any name.
    """
    check_user_values(values)
    for name in values if is_script else ():
        steers = name.startswith(STEERING_PREFIX) or name == Key.TUNING_METRIC
        if name in added or (steers and name not in _STEERING) or carries_distribution([name]):
            raise HyperparameterError(
                f"hyperparameter {name!r}: it steers the container, where an option of the estimator sets it or nobody "
                "reads it, and the script would never get it; set the option (entry_point, distribution), or rename it"
            )


def check_environment(
    environment: Collection[str], launcher: Launcher, hyperparameters: Collection[str], channels: Collection[str]
) -> None:
    """Raise `OptionError` for variables that every rank gets with a value of Herringbone's."""
    if taken := sorted(own_variables(launcher, hyperparameters, channels) & set(environment)):
        raise OptionError(
            f"environment: {', '.join(taken)}: Herringbone sets this in every rank, and a value of yours would be "
            "ignored; leave it out, or give the script a variable of another name"
        )


def shared_variables(encoded: Mapping[str, str], channels: Iterable[Channel]) -> tuple[str, ...]:
    """Return a note for each variable that two hyperparameters or two channels share.

    >>> shared_variables({"lr": "0.1", "LR": "0.2"}, [])[0].partition(",")[0]
    "hyperparameters 'lr' and 'LR' share the variable SM_HP_LR"
    """
    return tuple(
        f"{'hyperparameters' if variable.startswith('SM_HP_') else 'channels'} {' and '.join(map(repr, names))} share "
        f"the variable {variable}, which has one of them; the script finds all in SM_TRAINING_ENV"
        for variable, names in named_variables(split(encoded)[0], [channel.name for channel in channels]).items()
        if len(names) > 1
    )
