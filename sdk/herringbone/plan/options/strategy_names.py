"""The `distribution` that a bare name means: `distribution="torch_distributed"`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herringbone_contract.errors import DistributionError, near_words

# Not a strategy: the one that a prediction of the measured script finds best.
AUTO = "auto"
# Strategies that need no other key. `mpi` does: the number of ranks of a host.
_NAMED = ("torch_distributed", "pytorchddp", "parameter_server", "multi_worker_mirrored_strategy", "pytorchxla")
_LIBRARY = "smdistributed.dataparallel"
# Words that users try first, with the strategy that they mean.
_ALIASES = {
    **dict.fromkeys(("torch", "torchrun", "ddp"), "torch_distributed"),
    **dict.fromkeys(("smddp", "dataparallel", "smdistributed"), _LIBRARY),
}
_NEED_KEYS = {
    "mpi": "{'mpi': {'enabled': True, 'processes_per_host': 2}}",
    **dict.fromkeys(
        ("modelparallel", "smp"),
        "{'smdistributed': {'modelparallel': {'enabled': True, 'parameters': {'partitions': 2}}}, "
        "'mpi': {'enabled': True, 'processes_per_host': 2}}",
    ),
}


def named_strategy(value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """Return the dict that a strategy's name stands for; any other value is returned as it is.

    >>> named_strategy("torch_distributed")
    {'torch_distributed': {'enabled': True}}

    Raises `DistributionError` for another name.
    """
    if not isinstance(value, str):
        return value
    if value == _LIBRARY:
        return {"smdistributed": {"dataparallel": {"enabled": True}}}
    if value in _NAMED:
        return {value: {"enabled": True}}
    if value in _NEED_KEYS:
        raise DistributionError(f"distribution: {value!r} needs a dict: {_NEED_KEYS[value]}")
    nearest = [_ALIASES[value]] if value in _ALIASES else near_words(value, _NAMED)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise DistributionError(
        f"distribution: no strategy {value[:80]!r}.{hint} Names: {', '.join([*_NAMED, _LIBRARY, AUTO])};"
        " or give a dict."
    )
