from __future__ import annotations

import math

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.learning_rate import Schedule


@pytest.mark.parametrize(
    ("decay", "factors"),
    [
        ("constant", [0.1, 0.55, 1, 1, 1, 1]),
        ("polynomial", [0.1, 0.55, 1, 0.2 + 0.8 / 4, 0.2, 0.2]),
        ("cosine", [0.1, 0.55, 1, 0.6, 0.2, 0.2]),
    ],
)
def test_the_factor_warms_up_decays_and_stays(decay: str, factors: list[float]) -> None:
    schedule = Schedule(length=6, warmup=2, decay=decay, power=2, start=0.1, end=0.2)
    assert [schedule.factor(progress) for progress in (0, 1, 2, 4, 6, 7)] == pytest.approx(factors)


def test_epochs_and_steps_give_the_same_rates() -> None:
    epochs = Schedule(length=3, warmup=1).by_steps(steps_per_unit=7)
    steps = Schedule(length=21, warmup=7).by_steps()
    assert [epochs(step) for step in range(22)] == pytest.approx([steps(step) for step in range(22)])


def test_no_step_has_the_factor_zero() -> None:
    rate = Schedule(length=4, warmup=2, decay="polynomial").by_steps()
    assert [rate(step) for step in range(4)] == [0.25, 0.75, 0.75, 0.25]


def test_a_training_of_warm_up_alone_ends_at_its_peak() -> None:
    rate = Schedule(length=2, warmup=2).by_steps()
    assert [rate(0), rate(1)] == [0.25, 0.75]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length 0"),
        ({"length": math.nan}, "length nan"),
        ({"length": 5, "warmup": 6}, "warmup 6: it lies between 0 and the length, 5"),
        ({"length": 5, "decay": "linear"}, "decay 'linear': it is one of constant, polynomial, cosine"),
        ({"length": 5, "power": 0}, "power 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        Schedule(**settings)
