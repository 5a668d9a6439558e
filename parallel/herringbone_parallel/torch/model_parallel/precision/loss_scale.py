"""The factor of the loss in half precision, by which small gradients stay above float16's smallest number. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.values import Precision


@dataclass(frozen=True)
class DynamicScale:
    """The rules of a dynamic scale, with the names and defaults of SMP v1's `dynamic_loss_args`.

    init_scale              the first scale
    scale_factor            the scale is divided by it after an overflow, and multiplied by it after a good time
    scale_window            the number of steps without an overflow that make a good time
    min_scale               the scale does not go below
    delayed_shift           the number of overflows until the scale is divided
    consecutive_hysteresis  count these overflows anew after each step without one, not only after a good time
    """

    init_scale: float = 2.0**32
    scale_factor: float = 2.0
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False

    def __post_init__(self) -> None:
        for name in ("init_scale", "min_scale"):
            _check_scale(f"dynamic_loss_args' {name}", getattr(self, name))
        if not self.scale_factor > 1:
            raise ParallelError(f"dynamic_loss_args' scale_factor is a number above 1, not {self.scale_factor!r}")
        for name in ("scale_window", "delayed_shift"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ParallelError(f"dynamic_loss_args' {name} is a whole number from 1, not {value!r}")


class LossScale:
    """The scale of the loss: a constant one, or one that follows the overflows.

        scale = LossScale(1024.0)
        scale = LossScale(DynamicScale(init_scale=1024.0, scale_window=2))
        scale.update(overflow=True)
        scale.value                         # 512.0

    `update` returns whether the scale has to stay although there was an overflow, because it is the smallest one.
    """

    def __init__(self, rule: float | DynamicScale) -> None:
        self.rule = rule
        self.value = rule.init_scale if isinstance(rule, DynamicScale) else rule
        self._good_steps = 0
        self._overflows_left = rule.delayed_shift if isinstance(rule, DynamicScale) else 0

    def update(self, *, overflow: bool) -> bool:
        """Note a step's end, and return whether the scale would have to go below its minimum."""
        rule = self.rule
        if not isinstance(rule, DynamicScale):
            return False
        if overflow:
            self._good_steps = 0
            if self._overflows_left > 1:
                self._overflows_left -= 1
                return False
            stuck = self.value <= rule.min_scale
            self.value = max(self.value / rule.scale_factor, rule.min_scale)
            return stuck
        self._good_steps += 1
        good_time = self._good_steps % rule.scale_window == 0
        if good_time or rule.consecutive_hysteresis:
            self._overflows_left = rule.delayed_shift
        if good_time:
            self.value *= rule.scale_factor
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as numbers."""
        return {"scale": self.value, "good_steps": self._good_steps, "overflows_left": self._overflows_left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another dynamic scale; a constant one stays as the script gave it."""
        if isinstance(self.rule, DynamicScale):
            self.value, self._good_steps = float(state["scale"]), int(state["good_steps"])
            self._overflows_left = min(int(state["overflows_left"]), self.rule.delayed_shift)


def parse(
    precision: Precision, static: float | None, dynamic: bool, arguments: Mapping[str, Any] | None
) -> LossScale | None:
    """Return the scale that arguments of `smp.DistributedOptimizer` ask for; None if nothing is scaled.

    >>> parse("fp32", None, True, {"init_scale": 1024.0}).value
    1024.0

    bfloat16 has the range of float32, so nothing is scaled in it. In `fp16` a scale of 1 still looks for overflows.
    Raises `ParallelError` for arguments that contradict each other or do not exist.
    """
    given = dict(arguments or {})
    if given and not dynamic:
        raise ParallelError(
            f"smp.DistributedOptimizer: {', '.join(given)} without dynamic_loss_scale=True: nothing would use it"
        )
    if dynamic and static not in (None, 1.0):
        raise ParallelError(
            f"smp.DistributedOptimizer(static_loss_scale={static!r}, dynamic_loss_scale=True): leave one of them out"
        )
    known = asdict(DynamicScale())
    for name in given:
        if name not in known:
            raise ParallelError(f"smp.DistributedOptimizer has no argument {name!r}; there are {', '.join(known)}")
    rule: float | DynamicScale = DynamicScale(**given) if dynamic else 1.0 if static is None else static
    if not isinstance(rule, DynamicScale):
        _check_scale("smp.DistributedOptimizer's static_loss_scale", rule)
    if precision == "bf16" or (precision == "fp32" and rule == 1.0):
        return None
    return LossScale(rule)


def _check_scale(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ParallelError(f"{name} is a number above 0, not {value!r}")
