"""Names of a user's that would be lost without a word: Herringbone, or another setting, has them too. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from herringbone_contract.constants import STEERING_PREFIX, Key
from herringbone_contract.errors import HyperparameterError, OptionError
from herringbone_contract.hyperparameters import carries_distribution, check_user_values
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
    """Raise `OptionError` for variables that every rank gets with Herringbone's value, or with one of two values."""
    for variable, names in named_variables(hyperparameters, channels).items():
        if len(names) > 1:
            kind = "hyperparameters" if variable.startswith("SM_HP_") else "channels"
            raise OptionError(
                f"{kind} {' and '.join(map(repr, names))} share the variable {variable}, which can have one of them; "
                "leave one out, or give it another name"
            )
    if taken := sorted(own_variables(launcher, hyperparameters, channels) & set(environment)):
        raise OptionError(
            f"environment: {', '.join(taken)}: Herringbone sets this in every rank, and a value of yours would be "
            "ignored; leave it out, or give the script a variable of another name"
        )
