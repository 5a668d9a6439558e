"""An optimizer for `mx.mod.Module` and custom loops that averages each gradient when it is applied."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from herringbone_parallel.mxnet.operations import allreduce_
from herringbone_parallel.mxnet.trainer import refuse
from herringbone_parallel.reduce.horovod import engine


class DistributedOptimizer(mx.optimizer.Optimizer):
    """A wrapper of the user's optimizer that applies the averages of all ranks' gradients.

        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / 32))
        module.fit(batches, optimizer=optimizer, kvstore=None)

    Each gradient is averaged by itself, when it is applied. With Gluon use `DistributedTrainer`, which is faster
    because it averages many gradients at once. `rescale_grad` is for this rank's own batch. Raises `ParallelError` for
    unsupported arguments.
    """

    def __init__(self, optimizer: Any, gradient_predivide_factor: float = 1.0, **others: Any) -> None:
        refuse(gradient_predivide_factor, others, "hvd.DistributedOptimizer")
        engine()
        # Not `super().__init__`: all other attributes are those of the user's optimizer, see `__getattr__`.
        self.__dict__["_optimizer"] = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_optimizer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # MXNet sets `rescale_grad` and `idx2name`, which the user's optimizer reads in its update.
        setattr(self.__dict__["_optimizer"], name, value)

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the state of a weight in the user's optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return the state of a weight in 16 bits in the user's optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or a list of gradients, and apply it."""
        _average(grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average and apply gradients of weights in 16 bits."""
        _average(grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the user's optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Set multipliers of the learning rate per parameter."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Set multipliers of the weight decay per parameter."""
        self._optimizer.set_wd_mult(args_wd_mult)


def _average(gradients: Any) -> None:
    if engine().size == 1:
        return
    # MXNet passes lists if it aggregates the updates of several weights.
    for gradient in gradients if isinstance(gradients, (tuple, list)) else [gradients]:
        allreduce_(gradient)
