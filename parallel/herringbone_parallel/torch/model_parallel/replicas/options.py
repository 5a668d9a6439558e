"""The arguments of `smp.DistributedModel` and `model.join` that concern replicas."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from herringbone_contract.errors import ParallelError

Future = torch.futures.Future[Any]
# (state, bucket) -> a future of the averaged flat gradients
HookFunction = Callable[[Any, Any], Future]


class CommHook(NamedTuple):
    """A communication hook, which averages a bucket instead of the reducer, with its own state."""

    state: Any
    function: HookFunction


@dataclass(frozen=True)
class ReductionOptions:
    """The arguments of `smp.DistributedModel` about replicas.

    overlapping_allreduce     start to reduce before the backward has ended
    backward_passes_per_step  reduce in every n-th step only; gradients add up until then
    bucket_cap_mb             MiB of gradients that travel together; the first bucket has 1
    broadcast_buffers         give every replica the first one's buffers, once, when the model is partitioned
    gradient_as_bucket_view   let `.grad` be a part of its bucket, which saves a copy of all gradients; they are then
                              reduced after the backward, because nothing may be added to gradients on their way
    find_unused_parameters    has no effect: parameters that a replica has not used are always found
    """

    overlapping_allreduce: bool = True
    backward_passes_per_step: int = 1
    bucket_cap_mb: float = 25
    broadcast_buffers: bool = True
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type == "bool" and not isinstance(value, bool):
                raise ParallelError(f"smp.DistributedModel({option.name}={value!r}): it is True or False")
        # `isinstance(True, int)` holds, so booleans are refused by name.
        passes, cap = self.backward_passes_per_step, self.bucket_cap_mb
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ParallelError(f"smp.DistributedModel(backward_passes_per_step={passes!r}): it is a number from 1")
        if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
            raise ParallelError(f"smp.DistributedModel(bucket_cap_mb={cap!r}): it is a number of MiB above 0")


_DEFAULTS = {option.name: option.default for option in fields(ReductionOptions)}


@dataclass(frozen=True)
class Uneven:
    """The arguments of `model.join`, for the time after some replicas have run out of batches.

    rescale    divide by the number of replicas that still have batches, and not by the number of all
    throw      end the step with an error on all replicas
    """

    rescale: bool
    throw: bool


def parse_options(arguments: Mapping[str, Any], *, replicated: bool) -> ReductionOptions:
    """Return the options among the arguments, and warn of those without effect because there are no replicas.

    Raises `ParallelError` for an unknown argument, and for a value that an option cannot have.
    """
    for name, value in arguments.items():
        if name not in _DEFAULTS:
            raise ParallelError(
                f"smp.DistributedModel has no argument {name!r}; there are trace_device, trace_execution_times,"
                f" trace_memory_usage, average_grads_across_microbatches, {', '.join(_DEFAULTS)}"
            )
        if not replicated and value != _DEFAULTS[name]:
            warnings.warn(
                f"smp.DistributedModel({name}={value!r}) has no effect: it concerns replicas of the pipeline, and this"
                " job has none",
                stacklevel=3,
            )
    return ReductionOptions(**arguments)
