"""Check the variables that a user adds to the ranks' environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from herringbone_contract.constants import MAX_ENVIRONMENT_CHARS, MAX_ENVIRONMENT_VARIABLES, HostVariable
from herringbone_contract.errors import OptionError

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_environment(environment: Mapping[str, str]) -> None:
    """Check the option `environment`. Raises `OptionError`."""
    if len(environment) > MAX_ENVIRONMENT_VARIABLES:
        raise OptionError(
            f"environment: {len(environment)} variables, the service takes {MAX_ENVIRONMENT_VARIABLES}; "
            "put the rest in a file of source_dir or in hyperparameters"
        )
    for name, value in environment.items():
        if not _VARIABLE_NAME.fullmatch(name):
            raise OptionError(f"environment: {name!r} is no variable name; use letters, digits and _ only")
        if len(value) > MAX_ENVIRONMENT_CHARS:
            raise OptionError(
                f"environment: {name} has {len(value)} characters, the service takes {MAX_ENVIRONMENT_CHARS}; "
                "put long values in a file of source_dir"
            )
        if "\0" in value:
            raise OptionError(f"environment: {name} holds a NUL character, which no environment can carry")
    observer = environment.get(HostVariable.OBSERVER, "on")
    if observer not in ("on", "off"):
        raise OptionError(
            f"environment: {HostVariable.OBSERVER} is {observer!r}; use 'off' for a job without samples and metrics of "
            "its script, or leave it out"
        )
