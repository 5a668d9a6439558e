"""An optimizer for modules and loops of one's own, which averages each gradient when it is applied."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from herringbone_parallel.mxnet.operations import allreduce_
from herringbone_parallel.mxnet.trainer import refuse
from herringbone_parallel.reduce.horovod import engine


class DistributedOptimizer(mx.optimizer.Optimizer):
    """The user's optimizer, which applies the averages of all ranks' gradients.

        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / 32))
        module.fit(batches, optimizer=optimizer, kvstore=None)

    Each gradient is averaged by itself, when it is applied: with Gluon `DistributedTrainer` is faster, which takes many
    at once. `rescale_grad` counts this rank's own batch. Raises `ParallelError` for arguments that it cannot serve.
    """

    def __init__(self, optimizer: Any, gradient_predivide_factor: float = 1.0, **others: Any) -> None:
        refuse(gradient_predivide_factor, others, "hvd.DistributedOptimizer")
        engine()
        # Its own attributes are the user's optimizer's: see `__getattr__`.
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_optimizer"], name)

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the user's optimizer's state of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """As `create_state`, of a weight in 16 bits."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradient, or the list of them, and apply it."""
        _average(grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As `update`, of weights in 16 bits."""
        _average(grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the user's optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Set multipliers of the learning rate, by parameter."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Set multipliers of the weight decay, by parameter."""
        self._optimizer.set_wd_mult(args_wd_mult)


def _average(gradients: Any) -> None:
    if engine().size == 1:
        return
    for gradient in gradients if isinstance(gradients, (tuple, list)) else [gradients]:
        allreduce_(gradient)
