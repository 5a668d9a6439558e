"""What a job says of aggregation, as its ranks read it."""

from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import Aggregation, aggregation

EVERY, AVERAGED = "HERRINGBONE_AGGREGATION_FREQUENCY", "HERRINGBONE_AVERAGE_AGGREGATED_GRADIENTS"


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, Aggregation(1, True)),
        ({EVERY: "4"}, Aggregation(4, True)),
        ({EVERY: "4", AVERAGED: "true"}, Aggregation(4, True)),
        ({EVERY: "4", AVERAGED: "false"}, Aggregation(4, False)),
    ],
)
def test_what_is_asked_for(environment: dict[str, str], asked: Aggregation) -> None:
    assert aggregation(environment) == asked


@pytest.mark.parametrize(
    ("name", "text"), [(EVERY, "0"), (EVERY, "-1"), (EVERY, "two"), (EVERY, ""), (AVERAGED, "0"), (AVERAGED, "")]
)
def test_what_no_launcher_writes_is_refused(name: str, text: str) -> None:
    with pytest.raises(ParallelError, match=f"{name}={text}: it is"):
        aggregation({name: text})
