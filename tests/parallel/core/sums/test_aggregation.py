"""Ranks read a job's aggregation from their environment."""

from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import Aggregation, aggregation

EVERY, AVERAGED = "HERRINGBONE_AGGREGATION_FREQUENCY", "HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Aggregation(1, True)),
        ({EVERY: "4"}, Aggregation(4, True)),
        ({EVERY: "4", AVERAGED: "true"}, Aggregation(4, True)),
        ({EVERY: "4", AVERAGED: "false"}, Aggregation(4, False)),
    ],
)
def test_aggregation_reads_the_environment(environment: dict[str, str], expected: Aggregation) -> None:
    assert aggregation(environment) == expected


@pytest.mark.parametrize(
    ("name", "text"), [(EVERY, "0"), (EVERY, "-1"), (EVERY, "two"), (EVERY, ""), (AVERAGED, "0"), (AVERAGED, "")]
)
def test_invalid_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(ParallelError, match=f"{name}={text}: it is n"):
        aggregation({name: text})
