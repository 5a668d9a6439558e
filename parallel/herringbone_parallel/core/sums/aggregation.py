"""How the gradients of several backwards become those of one step, as the job's `distribution` says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from herringbone_contract.constants import ReduceVariable
from herringbone_contract.errors import ParallelError


class Aggregation(NamedTuple):
    """A step is made of the gradients of `every` backwards: of their average, or of their sum."""

    every: int = 1
    averaged: bool = True


def aggregation(environment: Mapping[str, str]) -> Aggregation:
    """Return what the job asks for, each backward a step unless it says otherwise.

    >>> aggregation({"HERRINGBONE_AGGREGATION_FREQUENCY": "4"})
    Aggregation(every=4, averaged=True)

    Raises `ParallelError` for what no launcher writes.
    """
    name = ReduceVariable.AGGREGATION_FREQUENCY
    every = environment.get(name, "1")
    if not every.isdecimal() or int(every) < 1:
        raise ParallelError(f"{name}={every}: it is a number from 1")
    name = ReduceVariable.AVERAGE_AGGREGATED_GRADIENTS
    averaged = environment.get(name, "true")
    if averaged not in ("true", "false"):
        raise ParallelError(f"{name}={averaged}: it is true or false")
    return Aggregation(int(every), averaged == "true")
