"""Creating a model: `set_partition`, `delay_param_initialization` and `model_creation`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.placement.delayed import delaying
from herringbone_parallel.torch.model_parallel.placement.placement import PARTITION_ATTRIBUTE


def set_partition(module: nn.Module, idx: int) -> None:
    """Put an existing module and all modules inside it on a partition; `smp.partition` is for new ones.

        for index, layer in enumerate(model.layers):
            smp.set_partition(layer, index * smp.pp_size() // len(model.layers))

    The last call for a module decides. Used with `auto_partition: False`; an automatic partition ignores it, as SMP v1
    does. Raises `ParallelError` for a partition that does not exist, and once the model is partitioned.
    """
    library = state.get()
    if isinstance(idx, bool) or not isinstance(idx, int) or not 0 <= idx < library.settings.partitions:
        raise ParallelError(f"there is no partition {idx!r}; there are {library.settings.partitions}, from 0")
    if library.model is not None and library.model.partitioned and library.settings.partitions > 1:
        raise ParallelError("smp.set_partition after the model was partitioned; call it before the first step")
    for inner in module.modules():
        inner.__dict__[PARTITION_ATTRIBUTE] = idx


@contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Create a model without memory for its parameters: each gets its values after the partition, on its own rank.

        with smp.delay_param_initialization():
            model = Net()
        model = smp.DistributedModel(model)

    Initialisation by torch's layers, `torch.nn.init` and in-place operations is recorded and done later. A parameter
    that is computed from other tensors has its values at once. The values depend on the seed and not on the number of
    partitions; they differ from those without the delay. Such a model is not traced: an automatic partition uses the
    sizes of the parameters only. Raises `ParallelError` when the model's code reads the values of a parameter that has
    none yet. Source: SMP v1, `smp.delay_param_initialization`.
    """
    with delaying() if enabled else nullcontext():
        yield


@contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Create the floating-point parameters inside the `with` block in `dtype`.

        with smp.model_creation(dtype=torch.bfloat16):
            model = Net()

    With the job's setting `delayed_parameter_initialization` it does what `smp.delay_param_initialization` does, too.
    Raises `ParallelError` for tensor parallelism and its settings. Source: SMP v1, `smp.model_creation`.
    """
    if tensor_parallelism or tensor_parallel_config:
        refused = ", ".join(["tensor_parallelism"] * tensor_parallelism + list(tensor_parallel_config))
        raise ParallelError(
            f"smp.model_creation({refused}): there is no tensor parallelism in this release; pass `dtype`"
        )
    # torch's layers take their dtype from the default when they are created.
    before = torch.get_default_dtype()
    torch.set_default_dtype(before if dtype is None else dtype)
    try:
        with delay_param_initialization(state.get().settings.delayed_parameter_initialization):
            yield
    finally:
        torch.set_default_dtype(before)
