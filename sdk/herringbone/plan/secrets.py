"""Keep secrets out of what is shown, and out of arguments of programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from herringbone.plan.options.typed import Options
from herringbone_contract.constants import Key, masked
from herringbone_contract.errors import DistributionError, HyperparameterError
from herringbone_contract.masking import masked_hyperparameters, masked_text


def check_arguments(encoded: Mapping[str, str], own: Sequence[str], entry_point: str | None) -> None:
    """Refuse secrets that would be arguments of a program: every user of a machine can read those.

    `encoded` are all hyperparameters, `own` the names of the user's. Raises `DistributionError` for secrets in MPI
    options, `HyperparameterError` for those of a shell script. A Python script runs in the process that has read its
    hyperparameters, so its arguments are not shown.
    """
    remedy = "give it in environment={...}, which reaches every rank in private"
    for key in (Key.MPI_CUSTOM_OPTIONS, Key.DATA_PARALLEL_CUSTOM_OPTIONS):
        text = str(json.loads(encoded.get(key, '""')))
        if masked_text(text) != text:
            raise DistributionError(
                f"custom_mpi_options: {masked_text(text)!r}: a secret, which would be an argument of mpirun; {remedy}"
            )
    if entry_point is None or not entry_point.endswith(".sh"):
        return
    hidden = masked_hyperparameters({name: encoded[name] for name in own})
    names = [name for name, value in hidden.items() if value != encoded[name]]
    if names:
        raise HyperparameterError(
            f"hyperparameters: {', '.join(names)}: a secret, which would be an argument of "
            f"{entry_point}, where every user of the machine can read it; {remedy}"
        )


def masked_options(options: Options) -> Options:
    """Return options that can be shown and stored: without secrets, and without the session, which is any object."""
    return msgspec.structs.replace(
        options,
        environment=masked(options.environment),
        extra_request=masked_request(options.extra_request),
        git_config=None if options.git_config is None else options.git_config.masked,
        sagemaker_session=None,
    )


def masked_request(request: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a request to the service with the values of secret-sounding names masked."""
    if request is None:
        return None
    shown = dict(request)
    if isinstance(environment := request.get("Environment"), dict):
        shown["Environment"] = masked(environment)
    if isinstance(hyperparameters := request.get("HyperParameters"), dict):
        shown["HyperParameters"] = masked_hyperparameters(hyperparameters)
    return shown
