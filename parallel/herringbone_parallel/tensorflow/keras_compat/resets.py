"""Calls of TensorFlow 2.3 to 2.6 that reset states and metrics. Keras 3 has no such names, so no other script notices.

Every rank of a job gets them: `herringbone_entry.ranks.import_hooks` calls `watch`, which imports no framework.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from herringbone_parallel.tensorflow.patches import Patches


def watch(keras: ModuleType) -> None:
    """Add the calls to Keras 3 on TensorFlow, as soon as the script has imported `keras`; no other Keras is changed."""
    if keras.__version__.startswith("3.") and keras.config.backend() == "tensorflow":
        add(keras, Patches())


def add(keras: ModuleType, patches: Patches) -> None:
    """Add the calls; a metric's subclass may override the old name or the new one."""
    metric = keras.metrics.Metric

    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:  # noqa: N807
        super(metric, cls).__init_subclass__(**kwargs)
        if "reset_states" in vars(cls) and "reset_state" not in vars(cls):
            # Keras 3 calls `reset_state`, and a script of that time overrides `reset_states`.
            cls.reset_state = cls.reset_states

    patches.set(metric, "__init_subclass__", classmethod(__init_subclass__))
    patches.set(metric, "reset_states", _reset_states)
    patches.set(keras.Model, "reset_states", _reset_model)


def _reset_states(metric: Any) -> None:
    """Call the first `reset_state` among the metric's classes that is not a `reset_states` of the script."""
    # Such a `reset_state` is an alias that `__init_subclass__` made. It would call this function again, without end.
    for base in type(metric).__mro__:
        members = vars(base)
        if "reset_state" in members and members["reset_state"] is not members.get("reset_states"):
            members["reset_state"](metric)
            return


def _reset_model(model: Any) -> None:
    """Reset the states of the model's recurrent layers."""
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "reset_state"):
            layer.reset_state()
