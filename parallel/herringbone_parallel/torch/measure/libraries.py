"""Time what `fully_shard` and `DistributedDataParallel` add to a step, in processes that have a group.

    work, elapsed = added(shard=True)
    work["shard"].byte_s, elapsed["shard"].byte_s     # processor seconds, and seconds by the clock

Small models are trained alone and with each library. Besides messages, a library's step has copies, fresh memory for
them, Python around each parameter, and waits for the other ranks, none of which shows in a message alone. On processors
`fully_shard` waits for each of its messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from herringbone_parallel.core.prediction.measurement import Added
from herringbone_parallel.torch.measure.probes import Calls

_UNITS, _FEW, _MANY = 4, 1, 4
# 64 MiB of parameters: far more than caches, and units above the sizes for which memory is kept between calls.
_NARROW, _WIDE = 8, 2048
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
    work: dict[str, Added] = {}
    elapsed: dict[str, Added] = {}
    for name, wrapped in (("replicate", _replicated), *([("shard", _sharded)] if shard else [])):
        steps = _steps(wrapped, _NARROW, _FEW), _steps(wrapped, _NARROW, _MANY), _steps(wrapped, _WIDE, _FEW)
        work[name] = solved(*steps, clock=0)
        elapsed[name] = solved(*steps, clock=1)
    return work, elapsed


def solved(few: Steps, many: Steps, wide: Steps, *, clock: int) -> Added:
    """Return the parts of what was added to models of few, of many, and of large parameters.

    >>> few, many = (Steps(Clocks(s, s), Clocks(0.5, 0.5), n, n) for s, n in ((8.0, 4), (12.0, 8)))
    >>> solved(few, many, Steps(Clocks(28.0, 28.0), Clocks(0.0, 0.0), 4, 44), clock=0)
    Added(unit_s=1.0, parameter_s=1.0, byte_s=0.5, call_s=0.5)
    """
    parameter_s = max(0.0, (many.step[clock] - few.step[clock]) / (many.parameters - few.parameters))
    return Added(
        unit_s=max(0.0, few.step[clock] - few.parameters * parameter_s) / _UNITS,
        parameter_s=parameter_s,
        byte_s=max(0.0, wide.step[clock] - few.step[clock]) / (wide.size - few.size),
        call_s=max(0.0, many.call[clock]),
    )


def _steps(wrapped: Callable[[nn.Module], nn.Module], width: int, layers: int) -> Steps:
    """Train a model alone and with the library, and return the difference."""
    inputs = torch.rand(_SAMPLES, width)
    repeats = _REPEATS if width == _NARROW else _WIDE_REPEATS
    steps, updates, calls = [], [], 1
    sizes: list[int] = []
    for wrap in (_alone, wrapped):
        model = _model(width, layers)
        sizes = [parameter.nbytes for parameter in model.parameters()]
        trained = wrap(model)

        def step(trained: nn.Module = trained) -> None:
            trained.zero_grad()
            trained(inputs).sum().backward()

        steps.append(_clocks(step, repeats))
        # The optimizer of large tensors shows nothing of Python's part.
        if width == _NARROW:
            optimizer = torch.optim.AdamW(trained.parameters())
            updates.append(_clocks(optimizer.step, repeats))
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


def _less(clocks: list[Clocks]) -> Clocks:
    alone, together = clocks
    return Clocks(together.work - alone.work, together.elapsed - alone.elapsed)


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
