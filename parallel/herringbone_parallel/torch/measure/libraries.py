"""Time what `fully_shard`, `DistributedDataParallel` and shared updates add to a step, in processes that have a group.

    work, elapsed = added(shard=True)
    work["shard"].byte_s, elapsed["shard"].byte_s     # processor seconds, and seconds by the clock

Small models are trained alone and with each library. Besides messages, a library's step has copies, fresh memory for
them, Python around each parameter, and waits for the other ranks, none of which shows in a message alone. On processors
`fully_shard` waits for each of its messages. An update is shared by replicas with `shard_optimizer_state`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from herringbone_parallel.core.prediction.measurement import Added
from herringbone_parallel.torch.measure.probes import Calls
from herringbone_parallel.torch.model_parallel.replicas.replicas import Replicas, job_store
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.updates import DividedUpdates

_UNITS, _FEW, _MANY = 4, 1, 4
# Units of 16 and 49 MiB: far more than caches, and below and above `LARGE_UNIT`.
_NARROW, _WIDE, _WIDEST = 8, 2048, 3584
_SAMPLES = 4
_WARM_UP, _REPEATS, _WIDE_REPEATS = 2, 8, 4


class Clocks(NamedTuple):
    """Seconds of the processor, and by the clock."""

    work: float
    elapsed: float


class Steps(NamedTuple):
    """The seconds that a library adds to forward and backward of a model, and to each call of its optimizer."""

    step: Clocks
    call: Clocks
    parameters: int
    size: int


def added(*, shard: bool) -> tuple[dict[str, Added], dict[str, Added]]:
    """Return what each library adds to a step: as processor time, and by the clock; `fully_shard` if `shard`."""
    timed: dict[str, tuple[Callable[[int, int], Steps], int]] = {
        "replicate": (partial(_steps, _replicated), _UNITS),
        # All parameters of the small models are gathered together for an update.
        "update": (_shared_update, 1),
    }
    if shard:
        timed["shard"] = partial(_steps, _sharded), _UNITS
    work: dict[str, Added] = {}
    elapsed: dict[str, Added] = {}
    for name, (steps, units) in timed.items():
        few, many, wide = steps(_NARROW, _FEW), steps(_NARROW, _MANY), steps(_WIDE, _FEW)
        # The others keep their buffers, or gather all units at once.
        widest = steps(_WIDEST, _FEW) if name == "shard" else wide
        work[name] = solved(few, many, wide, widest, clock=0, units=units)
        elapsed[name] = solved(few, many, wide, widest, clock=1, units=units)
    return work, elapsed


def solved(few: Steps, many: Steps, wide: Steps, widest: Steps, *, clock: int, units: int) -> Added:
    """Return the parts of what was added to models of few, of many, of large, and of the largest parameters.

    >>> few, many = (Steps(Clocks(s, s), Clocks(0.5, 0.5), n, n) for s, n in ((8.0, 4), (12.0, 8)))
    >>> wide, widest = (Steps(Clocks(s, s), Clocks(0.0, 0.0), 4, n) for s, n in ((28.0, 44), (68.0, 64)))
    >>> solved(few, many, wide, widest, clock=0, units=4)
    Added(unit_s=1.0, parameter_s=1.0, byte_s=0.5, large_byte_s=1.0, call_s=0.5)
    """
    parameter_s = max(0.0, (many.step[clock] - few.step[clock]) / (many.parameters - few.parameters))
    return Added(
        unit_s=max(0.0, few.step[clock] - few.parameters * parameter_s) / units,
        parameter_s=parameter_s,
        byte_s=max(0.0, wide.step[clock] - few.step[clock]) / (wide.size - few.size),
        large_byte_s=max(0.0, widest.step[clock] - few.step[clock]) / (widest.size - few.size),
        call_s=max(0.0, many.call[clock]),
    )


def _steps(wrapped: Callable[[nn.Module], nn.Module], width: int, layers: int) -> Steps:
    """Train a model alone and with the library, and return the difference."""
    inputs = torch.rand(_SAMPLES, width)
    steps, updates, calls = [], [], 1
    sizes: list[int] = []
    for wrap in (_alone, wrapped):
        model = _model(width, layers)
        sizes = [parameter.nbytes for parameter in model.parameters()]
        trained = wrap(model)

        def step(trained: nn.Module = trained) -> None:
            trained.zero_grad()
            trained(inputs).sum().backward()

        steps.append(_clocks(step, _repeats(width)))
        # The optimizer of large tensors shows nothing of Python's part.
        if width == _NARROW:
            optimizer = torch.optim.AdamW(trained.parameters())
            updates.append(_clocks(optimizer.step, _repeats(width)))
            if wrap is _alone:
                with Calls() as counted:
                    optimizer.step()
                calls = len(counted.calls)
    return Steps(
        step=_less(steps),
        call=Clocks(*(seconds / calls for seconds in _less(updates))) if updates else Clocks(0.0, 0.0),
        parameters=len(sizes),
        size=sum(sizes),
    )


def _shared_update(width: int, layers: int) -> Steps:
    """Share the update of a model between all processes, without the optimizer's own work."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    everyone = Replicas(range(dist.get_world_size()), rank, [rank], group, job_store())
    model = _model(width, layers)
    updates = DividedUpdates(ShardGroup(everyone, None, everyone))
    updates.add(list(model.named_parameters()), torch.optim.SGD(model.parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return Steps(
        step=_clocks(lambda: updates.run(lambda: None), _repeats(width)),
        call=Clocks(0.0, 0.0),
        parameters=len(list(model.parameters())),
        size=sum(parameter.nbytes for parameter in model.parameters()),
    )


def _less(clocks: list[Clocks]) -> Clocks:
    alone, together = clocks
    return Clocks(together.work - alone.work, together.elapsed - alone.elapsed)


def _repeats(width: int) -> int:
    return _REPEATS if width == _NARROW else _WIDE_REPEATS


def _clocks(call: Callable[[], object], repeats: int) -> Clocks:
    """Return the lower quartiles, because other programs of the machine only add to them."""
    work, elapsed = [], []
    # The first calls make buffers and states.
    for number in range(_WARM_UP + repeats):
        start = time.process_time(), time.perf_counter()
        call()
        if number >= _WARM_UP:
            work.append(time.process_time() - start[0])
            elapsed.append(time.perf_counter() - start[1])
    return Clocks(sorted(work)[repeats // 4], sorted(elapsed)[repeats // 4])


def _alone(model: nn.Module) -> nn.Module:
    return model


def _sharded(model: nn.Module) -> nn.Module:
    for unit in model.children():
        fully_shard(unit)
    fully_shard(model)
    return model


def _replicated(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _model(width: int, layers: int) -> nn.Sequential:
    def unit() -> nn.Sequential:
        modules = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.LayerNorm(width))]
        return nn.Sequential(*modules)

    return nn.Sequential(*(unit() for _ in range(_UNITS)))
