"""`smdistributed.dataparallel`: the variables of its ranks and of its servers on helper hosts. Pure.

The library itself, `herringbone_parallel`, reads these variables and is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from herringbone_contract.constants import ReduceVariable

if TYPE_CHECKING:
    from herringbone_contract.strategies import DataParallel

# As in `plain`: no folder of the user's comes first on sys.path.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; "
    "from herringbone_entry.sidecars.reduce_server import main; main()"
)


def settings(strategy: DataParallel) -> dict[str, str]:
    """Return the variables that carry the library's settings in the `distribution`.

    >>> from herringbone_contract.strategies import DataParallel
    >>> settings(DataParallel(enabled=True, wire="bf16", rails=("eth0", "eth1")))
    {'HERRINGBONE_REDUCE_WIRE': 'bf16', 'HERRINGBONE_REDUCE_RAILS': 'eth0,eth1'}
    """
    values: dict[str, str] = {}
    # A setting that the user did not give is `UNSET`, a type of its own, and msgspec is not imported for it.
    if isinstance(strategy.wire, str):
        values[ReduceVariable.WIRE] = strategy.wire
    if isinstance(strategy.rails, tuple):
        values[ReduceVariable.RAILS] = ",".join(strategy.rails)
    if isinstance(strategy.aggregation_frequency, int):
        values[ReduceVariable.AGGREGATION_FREQUENCY] = str(strategy.aggregation_frequency)
    if isinstance(strategy.average_aggregated_gradients, bool):
        values[ReduceVariable.AVERAGE_AGGREGATED_GRADIENTS] = str(strategy.average_aggregated_gradients).lower()
    return values


def server_argv(python: str) -> list[str]:
    """Return the command of a helper host's server."""
    return [python, "-c", _START]


def server_environment(
    inherited: Mapping[str, str], rails: str | None, *, host: str, on_one_machine: bool
) -> dict[str, str]:
    """Return the environment of a helper's server, which listens at all addresses of a host among several machines."""
    listen = "127.0.0.1" if on_one_machine else "0.0.0.0"  # noqa: S104 - each client must prove that it knows the token
    values = {**inherited, ReduceVariable.HOST: host, ReduceVariable.LISTEN: listen}
    return values if rails is None else {**values, ReduceVariable.RAILS: rails}


def token(secret: bytes) -> str:
    """Return the token with which ranks and servers prove themselves, derived from the supervisors' secret.

    It is not that secret itself: user code can read the token, and must not be able to join as a host.
    """
    # Most jobs never need this module.
    import hmac

    return hmac.digest(secret, b"herringbone reduce", "sha256").hex()
