"""Extends torch's DistributedDataParallel on the job's `smddp` group; scripts need no setting for it.

- If the ranks' models differ in a parameter's name, shape or type, wrapping the model raises an error that names it.
- Equal weights are not broadcast. If they differ, rank 0's are broadcast, as torch always does.
- Buckets have sizes that suit these links, unless `bucket_cap_mb` is given.
- `device_ids` are ignored for a model on the CPU, so that scripts written for GPUs run there.
- Rank 0 logs once how gradients are summed, and which setting would be faster.
- A forward after parameters were frozen or thawed raises an error.
- With an aggregation frequency n above 1, the gradients of n backwards are added up first (`aggregation`).
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.aggregation import aggregation
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.advising import log_advice
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.torch.data_parallel import agreement
from herringbone_parallel.torch.data_parallel.advising import Clock, CudaClock, GradientObserver
from herringbone_parallel.torch.data_parallel.aggregation import Aggregator
from herringbone_parallel.torch.data_parallel.backend import ReduceGroup
from herringbone_parallel.torch.data_parallel.bucket_sizes import bucket_bytes
from herringbone_parallel.torch.step_hook import count_steps

_MEBIBYTE = 1 << 20
# The engines for which advice has been logged or will be: once per job. Weak, so that closed engines are freed.
_advised: weakref.WeakSet[Engine] = weakref.WeakSet()
_stock, _notify = DistributedDataParallel.__init__, Join.notify_join_context
_signature = inspect.signature(_stock)


def adopt() -> None:
    """Patch DistributedDataParallel to do the above on the job's `smddp` group; it is unchanged on other groups."""
    DistributedDataParallel.__init__ = _init  # type: ignore[method-assign]
    Join.notify_join_context = staticmethod(_notify_and_keep)  # type: ignore[method-assign]


def _notify_and_keep(joinable: Any) -> Any:
    """Count the ranks that still train in `model.join`, and keep the work object until the model's next forward.

    torch's reducer keeps the C++ half alone, and waits for it in the backward: it would wait forever.
    """
    joinable._herringbone_join_work = work = _notify(joinable)
    return work


@functools.wraps(_stock)
def _init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    arguments = dict(_signature.bind(self, *args, **kwargs).arguments)
    group = arguments.get("process_group") or (dist.group.WORLD if arguments.get("device_mesh") is None else None)
    if not isinstance(group, ReduceGroup) or group.engine is None:
        _stock(self, *args, **kwargs)
        return
    setting = aggregation(os.environ)
    count_steps()
    if not any(parameter.is_cuda for parameter in arguments["module"].parameters()):
        # Scripts written for GPUs name this rank's, and torch refuses that for a model on the CPU.
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)
    if group.engine.size > 1:
        _complete(arguments, group.engine)
    _stock(**arguments)
    # torch.compile cuts a model at this size, and refuses one below that of torch's own first bucket.
    first = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
    self.bucket_bytes_cap = max(self.bucket_bytes_cap, first)
    if group.engine.size > 1 and group.engine.rank == 0:
        _observe(self, group.engine)
    if setting.every > 1:
        Aggregator(setting).watch(self)
    self.register_forward_pre_hook(_RequiresGrad(self))


class _RequiresGrad:
    """A hook that refuses a forward after parameters were thawed or frozen: the buckets stay those of the first model.

    torch sums no gradient of a thawed parameter, so that ranks would train different models, and waits for each frozen
    one unless it looks for unused parameters.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        ignored = model.parameters_to_ignore
        named = model.module.named_parameters()
        self._before = [(name, value, value.requires_grad) for name, value in named if name not in ignored]

    def __call__(self, model: Any, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for name, parameter, before in self._before:
            if parameter.requires_grad != before and not (before and model.find_unused_parameters):
                raise ParallelError(
                    f"requires_grad of {name} has become {parameter.requires_grad} since DistributedDataParallel has"
                    " wrapped the model, which then sums other gradients. Wrap the model again:"
                    " DistributedDataParallel(model.module)"
                )


def _complete(arguments: dict[str, Any], engine: Engine) -> None:
    """Fill in the arguments that the caller has left out."""
    module = arguments["module"]
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    parameters = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    agreement.require_alike(engine, parameters)
    if "init_sync" in _signature.parameters and "init_sync" not in arguments:
        buffers = module.named_buffers() if arguments.get("broadcast_buffers") is not False else ()
        tensors = [*parameters, *((name, buffer) for name, buffer in buffers if name not in ignored)]
        # Without `init_sync`, torch does not broadcast rank 0's weights.
        arguments["init_sync"] = not agreement.are_equal(engine, tensors)
    cost = session.cost()
    if arguments.get("bucket_cap_mb") is None and not arguments.get("bucket_cap_mb_list"):
        trained = [parameter for _, parameter in parameters if parameter.requires_grad]
        sizes = bucket_bytes(trained, cost)
        # torch rebuilds its buckets in the order of the first backward, except if it looks for unused parameters. Then
        # it keeps the order of definition, which is the reverse.
        rebuilt = arguments.get("static_graph", False) or not arguments.get("find_unused_parameters", False)
        arguments.update(_caps(sizes if rebuilt else sizes[::-1]))


def _observe(model: DistributedDataParallel, engine: Engine) -> None:
    """Log advice for one of the first steps of the job's first model."""
    if engine not in _advised:
        _advised.add(engine)
        clock = CudaClock() if any(parameter.is_cuda for parameter in model.module.parameters()) else Clock()
        GradientObserver(model, clock, functools.partial(log_advice, engine, session.cost()))


def _caps(sizes: list[int]) -> dict[str, Any]:
    """Return the arguments for buckets of these sizes; with an older torch, all have the median size. Pure."""
    if not sizes:
        return {}
    if "bucket_cap_mb_list" in _signature.parameters:
        return {"bucket_cap_mb_list": [size / _MEBIBYTE for size in sizes]}
    return {"bucket_cap_mb": sorted(sizes)[len(sizes) // 2] / _MEBIBYTE}
