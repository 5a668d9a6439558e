"""How a model is made: where its parts will be, in which dtype, and when its parameters are initialised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.placement.delayed import delaying
from herringbone_parallel.torch.model_parallel.placement.placement import WISH_ATTRIBUTE


def set_partition(module: nn.Module, idx: int) -> None:
    """Put a module that is there already, with all inside it, on a partition; `smp.partition` is for new ones.

        for index, layer in enumerate(model.layers):
            smp.set_partition(layer, index * smp.pp_size() // len(model.layers))

    The last word on a module decides. Used with `auto_partition: False`; an automatic partition ignores it, as SMP v1
    does. Raises `ParallelError` for what is no partition, or once the model is partitioned.
    """
    here = state.get()
    if isinstance(idx, bool) or not isinstance(idx, int) or not 0 <= idx < here.settings.partitions:
        raise ParallelError(f"there is no partition {idx!r}; there are {here.settings.partitions}, from 0")
    if here.model is not None and here.model.partitioned and here.settings.partitions > 1:
        raise ParallelError("smp.set_partition after the model was partitioned; call it before the first step")
    for inner in module.modules():
        inner.__dict__[WISH_ATTRIBUTE] = idx


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Make a model without memory for its parameters: each gets its values after the partition, on its own rank.

        with smp.delay_param_initialization():
            model = Net()
        model = smp.DistributedModel(model)

    torch's own layers, `torch.nn.init` and in-place operations in the model's code all count, only later. A parameter
    that is computed from other tensors has its values at once. The values belong to the seed, and are the same for any
    number of partitions; without the delay they are others. The model is not traced then: an automatic partition goes
    by the sizes of the parameters. Raises `ParallelError` when the model's code reads the values of a parameter that
    has none yet. Source: SMP v1, `smp.delay_param_initialization`.
    """
    with delaying() if enabled else nullcontext():
        yield


@contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Make the floating-point parameters created inside in `dtype`.

        with smp.model_creation(dtype=torch.bfloat16):
            model = Net()

    With `delayed_parameter_initialization` among the job's settings it is `smp.delay_param_initialization` as well.
    Raises `ParallelError` for tensor parallelism and its settings. Source: SMP v1, `smp.model_creation`.
    """
    if tensor_parallelism or tensor_parallel_config:
        asked = ", ".join(["tensor_parallelism"] * tensor_parallelism + list(tensor_parallel_config))
        raise ParallelError(
            f"smp.model_creation({asked}): there is no tensor parallelism in this release; pass `dtype`"
        )
    before = torch.get_default_dtype()
    torch.set_default_dtype(before if dtype is None else dtype)
    try:
        with delay_param_initialization(state.get().settings.delayed_parameter_initialization):
            yield
    finally:
        torch.set_default_dtype(before)
