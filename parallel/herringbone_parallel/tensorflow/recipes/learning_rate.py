"""A learning rate that follows a `Schedule`, for Keras's optimizers."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.recipes.learning_rate import Schedule


@keras.saving.register_keras_serializable(package="herringbone")
class ScheduledRate(keras.optimizers.schedules.LearningRateSchedule):
    """Computes the learning rate of each step: `rate` times the factor of the schedule.

        schedule = Schedule(length=90, warmup=5, decay="polynomial", power=2)          # epochs
        optimizer = LARS(ScheduledRate(3.2, schedule, steps_per_unit=steps_per_epoch))

    It works with any Keras optimizer. The factors are those that `Schedule.by_steps` gives to torch. They are computed
    once, and a step looks its factor up; steps after the end of the schedule have the last one. Under
    `DistributedOptimizer` with an aggregation frequency, it counts steps and not backward passes.
    """

    def __init__(self, rate: float, schedule: Schedule, *, steps_per_unit: float = 1) -> None:
        if not rate >= 0:
            raise ParallelError(f"ScheduledRate with a rate of {rate}: it is at least 0")
        self._rate, self._schedule, self._steps_per_unit = float(rate), schedule, steps_per_unit
        factor = schedule.by_steps(steps_per_unit)
        # One more than the schedule has: the factor after its end.
        steps = math.ceil(schedule.length * steps_per_unit) + 1
        self._rates = np.asarray([rate * factor(step) for step in range(steps)], np.float32)

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of a step; the first step is number 0."""
        number = tf.cast(tf.convert_to_tensor(step), tf.int64)
        return tf.gather(self._rates, tf.minimum(number, len(self._rates) - 1))

    def get_config(self) -> dict[str, Any]:
        """Return the settings, for a saved model."""
        return {"rate": self._rate, "schedule": asdict(self._schedule), "steps_per_unit": self._steps_per_unit}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScheduledRate:
        """Return the rate with these settings."""
        return cls(config["rate"], Schedule(**config["schedule"]), steps_per_unit=config["steps_per_unit"])
