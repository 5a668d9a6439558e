"""Explain the errors of Keras's `fit` under TensorFlow's strategies for several hosts.

Keras 3 does not train under them. It fails at the first batch, in the words of TensorFlow's own code. Source: Keras
3.15, keras#20585.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from herringbone_contract.errors import ParallelError

_METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch")
# Words of the errors: of a batch, of a loss, and of the data under `ParameterServerStrategy`. Another error is the
# script's own.
_WORDS = ("PerReplica", "Invalid reduction dimension 0", "create_per_worker_dataset")


def watch(module: ModuleType) -> None:
    """Make the methods of Keras's trainer for TensorFlow refuse such a strategy by name where they fail under it."""
    for name in _METHODS:
        setattr(module.TensorFlowTrainer, name, _explained(getattr(module.TensorFlowTrainer, name)))


def _explained(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(model: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(model, *args, **kwargs)
        except ValueError as error:
            # Strategies of one host have no resolver.
            if model.distribute_strategy.cluster_resolver is None or not any(word in str(error) for word in _WORDS):
                raise
            raise ParallelError(
                f"{model.name}.{method.__name__}: Keras 3 does not train under a strategy of TensorFlow's for several"
                ' hosts. Take {"smdistributed": {"dataparallel": {"enabled": True}}} as the distribution, under which'
                " it does; or write a loop with strategy.experimental_distribute_dataset and strategy.run"
            ) from error

    return call
