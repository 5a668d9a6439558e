"""What torch's DistributedDataParallel does by itself on the job's `smddp` group, and its users need not set.

- Ranks whose models differ in a parameter's name, shape or type hear it when they wrap it, by name.
- Equal weights are not broadcast: same seed, same model. Where they differ, rank 0's are, as always.
- Buckets have the sizes that these links want, unless `bucket_cap_mb` says otherwise.
- Rank 0 says once how the sums are made, and what would be faster.
- With an aggregation frequency above 1 the gradients of so many backwards are added up first (`aggregation`).
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from herringbone_parallel.core.sums.aggregation import aggregation
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.advising import begin
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.torch.data_parallel import agreement
from herringbone_parallel.torch.data_parallel.advising import Clock, CudaClock, Observer
from herringbone_parallel.torch.data_parallel.aggregation import Aggregator
from herringbone_parallel.torch.data_parallel.backend import ReduceGroup
from herringbone_parallel.torch.data_parallel.bucket_sizes import bucket_bytes

_MEBIBYTE = 1 << 20
# Of these the advice has been said, or will be: once in a job.
_advised: weakref.WeakSet[Engine] = weakref.WeakSet()
_stock = DistributedDataParallel.__init__
_signature = inspect.signature(_stock)


def adopt() -> None:
    """Have every DistributedDataParallel on the job's `smddp` group do the above; others are as torch makes them."""
    DistributedDataParallel.__init__ = _init  # type: ignore[method-assign]


@functools.wraps(_stock)
def _init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    given = dict(_signature.bind(self, *args, **kwargs).arguments)
    group = given.get("process_group") or (dist.group.WORLD if given.get("device_mesh") is None else None)
    if not isinstance(group, ReduceGroup) or group.engine is None:
        _stock(self, *args, **kwargs)
        return
    asked = aggregation(os.environ)
    if group.engine.size > 1:
        _prepare(given, group.engine)
    _stock(**given)
    if group.engine.size > 1 and group.engine.rank == 0:
        _observe(self, group.engine)
    if asked.every > 1:
        Aggregator(asked).watch(self)


def _prepare(given: dict[str, Any], engine: Engine) -> None:
    """Fill in what the caller has left open."""
    module = given["module"]
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    parameters = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    agreement.require_alike(engine, parameters)
    if "init_sync" in _signature.parameters and "init_sync" not in given:
        buffers = module.named_buffers() if given.get("broadcast_buffers") is not False else ()
        tensors = [*parameters, *((name, buffer) for name, buffer in buffers if name not in ignored)]
        given["init_sync"] = not agreement.are_equal(engine, tensors)
    cost = session.cost()
    if given.get("bucket_cap_mb") is None and not given.get("bucket_cap_mb_list"):
        trained = [parameter for _, parameter in parameters if parameter.requires_grad]
        sizes = bucket_bytes(trained, cost)
        rebuilt = given.get("static_graph", False) or not given.get("find_unused_parameters", False)
        given.update(_caps(sizes if rebuilt else sizes[::-1]))


def _observe(model: DistributedDataParallel, engine: Engine) -> None:
    """Have the advice said for one of the first steps of the job's first model."""
    if engine not in _advised:
        _advised.add(engine)
        clock = CudaClock() if any(parameter.is_cuda for parameter in model.module.parameters()) else Clock()
        Observer(model, clock, functools.partial(begin, engine, session.cost()))


def _caps(sizes: list[int]) -> dict[str, Any]:
    """Return the arguments that make buckets of these sizes; an older torch has them all of one size. Pure."""
    if not sizes:
        return {}
    if "bucket_cap_mb_list" in _signature.parameters:
        return {"bucket_cap_mb_list": [size / _MEBIBYTE for size in sizes]}
    return {"bucket_cap_mb": sorted(sizes)[len(sizes) // 2] / _MEBIBYTE}
