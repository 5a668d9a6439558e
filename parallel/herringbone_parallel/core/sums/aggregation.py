"""Reads how many backwards make one step from the environment that the launcher writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import ParallelError


class Aggregation(NamedTuple):
    """The gradients of a step: the average of those of `every` backwards, or their sum."""

    every: int = 1
    averaged: bool = True


def aggregation(environment: Mapping[str, str]) -> Aggregation:
    """Return the job's aggregation; by default each backward is a step.

    >>> aggregation({"HERRINGBONE_AGGREGATION_FREQUENCY": "4"})
    Aggregation(every=4, averaged=True)

    Raises `ParallelError` for values that no launcher writes.
    """
    name = ReduceVariable.AGGREGATION_FREQUENCY
    every = environment.get(name, "1")
    if not every.isdecimal() or int(every) < 1:
        raise ParallelError(f"{name}={every}: it is not a whole number from 1 on. Set it in the job's distribution.")
    name = ReduceVariable.AVERAGE_AGGREGATED_GRADIENTS
    averaged = environment.get(name, "true")
    if averaged not in ("true", "false"):
        raise ParallelError(f"{name}={averaged}: it is neither true nor false. Set it in the job's distribution.")
    return Aggregation(int(every), averaged == "true")
