"""Creating a model: `set_partition`, `delay_param_initialization` and `model_creation`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.placement.delayed import delaying
from herringbone_parallel.torch.model_parallel.placement.placement import PARTITION_ATTRIBUTE
from herringbone_parallel.torch.model_parallel.precision import half as precision
from herringbone_parallel.torch.model_parallel.tensor import marks


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


# Settings of distributed layers that AWS's scripts pass in any case. Without tensor parallelism no layer uses them.
_LAYER_SETTINGS = frozenset(
    {
        "attention_in_fp32", "distribute_embedding", "flash_attention", "fp32_residual_addition", "fused_bias_gelu",
        "fused_dropout", "fused_softmax", "optimize", "query_key_layer_scaling", "use_alibi",
    }
)  # fmt: skip


@contextmanager
def model_creation(
    tensor_parallelism: bool = False,
    dtype: torch.dtype | None = None,
    zero_init: bool = False,  # noqa: ARG001  see the docstring
    **tensor_parallel_config: Any,
) -> Iterator[None]:
    """Create the floating-point parameters inside the `with` block in `dtype`, by default that of the job's precision.

        with smp.model_creation(dtype=torch.bfloat16):
            model = Net()

    With the job's setting `delayed_parameter_initialization` it does what `smp.delay_param_initialization` does, too.
    `zero_init` has no effect: parameters are shared out when the model is partitioned, and not while it is created.
    With `tensor_parallelism` it does what `smp.tensor_parallelism` does, with the other arguments; without, settings of
    distributed layers have no effect, and an unknown one raises `ParallelError`. Source: SMP v1, `smp.model_creation`.
    """
    unknown = [key for key in tensor_parallel_config if key not in _LAYER_SETTINGS]
    if unknown and not tensor_parallelism:
        raise ParallelError(
            f"smp.model_creation has no argument {unknown[0]!r}; there are tensor_parallelism, dtype, zero_init,"
            f" {', '.join(sorted(_LAYER_SETTINGS))}"
        )
    if tensor_parallelism and tensor_parallel_config.get("use_alibi"):
        raise ParallelError(
            "smp.model_creation(use_alibi=True): modules keep the positions of the script's own model; leave it out,"
            " and create a model that has ALiBi, such as Hugging Face's BLOOM"
        )
    settings = state.get().settings
    if dtype is None:
        dtype = precision.parameter_dtype(settings.precision, fp16_params=settings.fp16_params)
    # torch's layers take their dtype from the default when they are created.
    before = torch.get_default_dtype()
    torch.set_default_dtype(before if dtype is None else dtype)
    try:
        with ExitStack() as stack:
            if tensor_parallelism:
                stack.enter_context(marks.tensor_parallelism(**tensor_parallel_config))
            stack.enter_context(delay_param_initialization(settings.delayed_parameter_initialization))
            yield
    finally:
        torch.set_default_dtype(before)
