"""Horovod's DistributedOptimizer: the user's optimizer, with a `step` that waits for the averages over all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import aggregation
from herringbone_parallel.reduce.horovod import Average, Compression, Op, Sum, engine
from herringbone_parallel.torch.data_parallel import agreement
from herringbone_parallel.torch.horovod.gradients import Gradients
from herringbone_parallel.torch.step_hook import count_steps

Named = Iterable[tuple[str, nn.Parameter]]


class _Distributed:
    """A mixin that is put before the class of the user's optimizer."""

    _gradients: Gradients
    _waits = True

    def synchronize(self) -> None:
        """Wait until the averages are in `.grad`; `step` does so, except inside `skip_synchronize`."""
        self._gradients.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step` use the gradients as they are, after `synchronize` and, for example, clipping."""
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the averages, then step."""
        if self._waits:
            self.synchronize()
        return super().step(closure)  # type: ignore[misc]  # the user's class comes after this one

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients; raises `ParallelError` while they are being summed."""
        if self._gradients.in_progress:
            raise ParallelError(
                "optimizer.zero_grad() after loss.backward() and before optimizer.step(): the gradients are being"
                " summed over the ranks; call step() or synchronize() first"
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]  # as above


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: str | None = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    sparse_as_dense: bool = False,
    **others: Any,
) -> Any:
    """Return the optimizer with steps by averages over all ranks, which are summed while the backward runs.

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    With `backward_passes_per_step`, the gradients of that many backwards are added up before one `step`; scale the loss
    to get their mean. Raises `ParallelError` for unsupported arguments, and on all ranks if their parameters differ.
    """
    if op not in (Average, Sum):
        raise ParallelError(f"hvd.DistributedOptimizer(op={op!r}): it is hvd.Average or hvd.Sum")
    if others.pop("gradient_predivide_factor", 1.0) != 1.0:
        raise ParallelError(
            "gradient_predivide_factor: sums are divided once, after they are taken in fp32; leave it out"
        )
    # Arguments that are left off change nothing, so only those that are switched on are refused.
    if unknown := sorted(name for name, value in others.items() if value):
        raise ParallelError(f"hvd.DistributedOptimizer has no {', '.join(unknown)} here")
    if backward_passes_per_step < 1:
        raise ParallelError(f"backward_passes_per_step={backward_passes_per_step}: it is a number from 1")
    if (every := aggregation(os.environ).every) > 1:
        raise ParallelError(
            f"aggregation_frequency {every} is for smddp; give hvd.DistributedOptimizer"
            f" backward_passes_per_step={every}"
        )
    trained = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
    ]
    named = _named(named_parameters, trained)
    agreement.require_alike(engine(), named)
    count_steps()
    # A subclass, so that `isinstance` and schedulers see the user's optimizer class.
    mixed = type(optimizer.__class__.__name__, (_Distributed, optimizer.__class__), {})
    wrapped: Any = object.__new__(mixed)
    # The result shares state and groups with the user's optimizer. A learning rate scheduler that was made before has
    # replaced `step` on that object; copying its `step` would bypass the averages.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    wrapped._gradients = Gradients(
        engine(), named, wire=compression, passes=backward_passes_per_step, op=op.value, densify=sparse_as_dense
    )
    return wrapped


def _named(named_parameters: Named | None, trained: list[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    """Return the trained parameters with their names, in the order of definition if it is known."""
    if named_parameters is None:
        # Without names, the order in the optimizer is all that there is.
        return [(f"parameter {index}", parameter) for index, parameter in enumerate(trained)]
    wanted = {id(parameter) for parameter in trained}
    named = [(name, parameter) for name, parameter in named_parameters if id(parameter) in wanted]
    missing = len(wanted) - len({id(parameter) for _, parameter in named})
    if missing:
        raise ParallelError(
            f"named_parameters leaves out {missing} of the optimizer's {len(wanted)} parameters: give all of them, as"
            " model.named_parameters() does, or leave it out"
        )
    return named
