"""Job names, and names of a user's that would be lost without a word. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from datetime import datetime

from herringbone_contract.constants import JOB_NAME_PATTERN, STEERING_PREFIX, Key
from herringbone_contract.errors import HyperparameterError, JobNameError, OptionError
from herringbone_contract.hyperparameters import carries_distribution, check_user_values
from herringbone_contract.launcher import Launcher
from herringbone_contract.variables import named_variables, own_variables

MAX_CHARS = 63
_STEERING = {value for name, value in vars(Key).items() if name.isupper()} - {Key.TUNING_METRIC}


def default_job_name(base: str, now: datetime) -> str:
    """Return `base` followed by the time to the millisecond. A long base is cut, the time never is.

    >>> default_job_name("pytorch", datetime(2026, 11, 21, 9, 5, 7, 42_000))
    'pytorch-2026-11-21-09-05-07-042'
    """
    stamp = now.strftime("-%Y-%m-%d-%H-%M-%S-") + f"{now.microsecond // 1000:03d}"
    # A name must not start with a hyphen, hence the strip.
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", base)[: MAX_CHARS - len(stamp)].strip("-")
    return (cleaned or "job") + stamp


def check_job_name(name: str) -> str:
    """Return the name unchanged. Raises `JobNameError` for a name that the service would refuse."""
    if not isinstance(name, str) or not JOB_NAME_PATTERN.fullmatch(name) or len(name) > MAX_CHARS:
        # The same letters, as far as a name may have them: `uni` for `ünï`.
        letters = unicodedata.normalize("NFKD", name[:MAX_CHARS]) if isinstance(name, str) else ""
        letters = "".join(letter for letter in letters if not unicodedata.combining(letter))
        proposal = re.sub(r"[^A-Za-z0-9]+", "-", letters).strip("-")
        hint = f"; did you mean {proposal!r}?" if 2 * len(proposal) > sum(map(str.isalnum, letters)) else ""
        raise JobNameError(
            f"job name {name!r}: use 1 to {MAX_CHARS} letters, digits and hyphens, starting and ending with no hyphen"
            f"{hint}"
        )
    return name


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


def none_notes(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return a note about hyperparameters that are None: SageMaker's scripts get an empty text for them.

    >>> none_notes({"lr": 0.1, "hub_token": None})[0].partition(":")[0]
    'hyperparameter hub_token is None'
    """
    names = [name for name, value in values.items() if value is None]
    if not names:
        return ()
    many = len(names) > 1
    return (
        f"hyperparameter{'s' * many} {', '.join(names)} {'are' if many else 'is'} None: the script gets an empty text, "
        "as on SageMaker; leave it out for the default of the script",
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
