"""The rules of the loss scale, by literals."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.precision.loss_scale import DynamicScale, LossScale, parse


def scales(rule: DynamicScale, steps: str) -> list[float]:
    """Return the scale after each step: `x` is an overflow, `.` a step without one."""
    scale = LossScale(rule)
    values = []
    for step in steps:
        scale.update(overflow=step == "x")
        values.append(scale.value)
    return values


def test_the_defaults_are_those_of_smp() -> None:
    assert DynamicScale() == DynamicScale(2.0**32, 2.0, 1000, 1.0, 1, False)
    assert scales(DynamicScale(), "x" * 16)[-1] == 2.0**16


@pytest.mark.parametrize(
    ("rule", "steps", "expected"),
    [
        (DynamicScale(8.0, scale_window=2), "..x....", [8, 16, 8, 8, 16, 16, 32]),
        (DynamicScale(8.0, scale_factor=4.0, min_scale=1.0), "xx", [2, 1]),
        (DynamicScale(8.0, scale_window=4, delayed_shift=2), "xxx.x", [8, 4, 2, 2, 1]),
        # The overflows count anew only after a good time, or with consecutive_hysteresis after each good step.
        (DynamicScale(8.0, scale_window=9, delayed_shift=2), "x.x", [8, 8, 4]),
        (DynamicScale(8.0, scale_window=9, delayed_shift=2, consecutive_hysteresis=True), "x.x", [8, 8, 8]),
    ],
)
def test_the_scale_follows_the_overflows(rule: DynamicScale, steps: str, expected: list[float]) -> None:
    assert scales(rule, steps) == expected


def test_the_smallest_scale_stays_and_says_so() -> None:
    scale = LossScale(DynamicScale(2.0))
    assert [scale.update(overflow=True) for _ in range(3)] == [False, True, True]
    assert scale.value == 1.0


def test_a_constant_scale_stays() -> None:
    scale = LossScale(8.0)
    assert scale.update(overflow=True) is False
    scale.load_state_dict(LossScale(DynamicScale()).state_dict())
    assert scale.value == 8.0


def test_the_state_continues_where_it_was() -> None:
    rule = DynamicScale(8.0, scale_window=3, delayed_shift=2)
    whole, first, second = LossScale(rule), LossScale(rule), LossScale(rule)
    for step in "x..":
        whole.update(overflow=step == "x")
        first.update(overflow=step == "x")
    second.load_state_dict(first.state_dict())
    for step in ".xx...":
        whole.update(overflow=step == "x")
        second.update(overflow=step == "x")
        assert second.value == whole.value


@pytest.mark.parametrize(
    ("precision", "static", "dynamic", "value"),
    [
        ("fp32", 1.0, False, None),
        ("fp32", None, False, None),
        ("fp32", 8.0, False, 8.0),
        ("fp32", None, True, 2.0**32),
        ("fp16", 1.0, False, 1.0),
        ("fp16", None, True, 2.0**32),
        ("bf16", None, True, None),
        ("bf16", 8.0, False, None),
    ],
)
def test_the_scale_that_arguments_ask_for(precision: Any, static: Any, dynamic: bool, value: float | None) -> None:
    scale = parse(precision, static, dynamic, None)
    assert (scale and scale.value) == value


@pytest.mark.parametrize(
    ("static", "dynamic", "fields", "message"),
    [
        (8.0, True, {}, r"static_loss_scale=8\.0, dynamic_loss_scale=True\): leave one of them out"),
        (None, False, {"min_scale": 1}, "min_scale without dynamic_loss_scale=True"),
        (None, True, {"window": 1}, "no argument 'window'; there are init_scale, scale_factor, scale_window, min_sc"),
        (None, True, {"scale_window": 0}, "scale_window is a whole number from 1, not 0"),
        (None, True, {"scale_factor": 1.0}, r"scale_factor is a number above 1, not 1\.0"),
        (None, True, {"init_scale": float("inf")}, "init_scale is a number above 0, not inf"),
        (0.0, False, {}, r"static_loss_scale is a number above 0, not 0\.0"),
    ],
)
def test_arguments_that_cannot_be_are_refused(static: Any, dynamic: bool, fields: Any, message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        parse("fp16", static, dynamic, fields)
