"""The documented names of SMP v1 for PyTorch, with their arguments and defaults, one by one.

Tensor parallelism and sharded data parallelism are left out, because they are refused by name. `|` comes before
arguments that are keyword-only; SMP v1's own documentation passes them by keyword, too.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
import torch

import herringbone_parallel.torch.model_parallel.api as smp
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.replicas.options import ReductionOptions

NAMES = {
    "init": "config=None",
    "is_initialized": "",
    "is_tracing": "",
    "step": "function=None, | non_split_inputs=(), input_split_axes=None, detach_outputs=True",
    "partition": "index",
    "set_partition": "module, idx",
    "delay_param_initialization": "enabled=True",
    "model_creation": "tensor_parallelism=False, dtype=None, zero_init=False, **tensor_parallel_config",
    "DistributedOptimizer": (
        "optimizer, static_loss_scale=1.0, dynamic_loss_scale=False, dynamic_loss_args=None,"
        # Ours: SMP v1 says nothing of optimizers that need more than a rank's own elements.
        " | elementwise=False, **others"
    ),
    # `v3` and `back_compat` are what Hugging Face's Trainer passes.
    "save": "obj, f, partial=True, pickle_module=None, pickle_protocol=2, v3=False",
    "load": "f, map_location=None, pickle_module=None, pickle_load_args=None, partial=True, back_compat=False",
    # SMP v1 has no default for `path`; ours is the job's own folder.
    "save_checkpoint": (
        "path=None, tag='', partial=True, model=None, optimizer=None, user_content=None, translate_if_full=True,"
        " num_kept_partial_checkpoints=None"
    ),
    "resume_from_checkpoint": (
        "path=None, tag=None, partial=True, strict=True, load_optimizer=True, load_sharded_optimizer_state=True,"
        " translate_function=None"
    ),
    "set_activation_checkpointing": "module, preserve_rng_state=True, pack_args_as_tuple=False, strategy='each'",
    "checkpoint_sequential": "sequential, input, strategy='each', preserve_rng_state=True, pack_args_as_tuple=False",
    "patches.checkpoint.checkpoint": "module, *args, | preserve_rng_state=True",
    "patches.checkpoint.checkpoint_sequential": (
        "sequential, input, strategy='each', preserve_rng_state=True, pack_args_as_tuple=False"
    ),
    "broadcast": "obj, group",
    "send": "obj, dest_rank, rank_type",
    "recv_from": "src_rank, rank_type",
    "allgather": "obj, group",
    "barrier": "group=<CommGroup.WORLD: 'DPT'>",
    "dp_barrier": "",
    "mp_barrier": "",
    **{f"{axis}{what}": "" for axis in ("", "local_", "mp_", "dp_", "tp_", "pp_", "rdp_") for what in ("rank", "size")},
    **{f"get_{group}_group": "" for group in ("mp", "dp", "tp")},
    **{f"get_{group}_process_group": "" for group in ("world", "mp", "dp", "pp", "tp", "rdp")},
}

METHODS = {
    "DistributedModel.backward": "tensors, grad_tensors=None, | retain_graph=False",
    "DistributedModel.local_buffers": "",
    "DistributedModel.local_named_buffers": "",
    "DistributedModel.local_parameters": "",
    "DistributedModel.local_named_parameters": "",
    "DistributedModel.local_modules": "",
    "DistributedModel.local_named_modules": "",
    "DistributedModel.local_state_dict": "",
    "DistributedModel.state_dict": "*args, **kwargs",
    "DistributedModel.load_state_dict": "state_dict, strict=True, assign=False",
    "DistributedModel.register_post_partition_hook": "hook",
    "DistributedModel.register_post_step_hook": "hook",
    "DistributedModel.get_module": "",
    "DistributedModel.cpu": "",
    "DistributedModel.join": "divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False",
    "DistributedModel.register_comm_hook": "state, hook",
    "DistributedOptimizer.state_dict": "",
    "DistributedOptimizer.load_state_dict": "state_dict",
    "DistributedOptimizer.local_state_dict": "gather_if_shard=True",
    "DistributedOptimizer.clip_master_grads": "max_norm, norm_type=2.0",
    "DistributedOptimizer.step": "closure=None",
    "DistributedOptimizer.zero_grad": "set_to_none=True",
    "StepOutput.reduce_mean": "",
    "StepOutput.reduce_sum": "",
    "StepOutput.concat": "",
    "StepOutput.stack": "",
}

MODEL_ARGUMENTS = {
    "trace_device": "gpu",
    "trace_execution_times": False,
    "overlapping_allreduce": True,
    "backward_passes_per_step": 1,
    "average_grads_across_microbatches": True,
    "bucket_cap_mb": 25,
    "trace_memory_usage": False,
    "broadcast_buffers": True,
    "gradient_as_bucket_view": False,
    "find_unused_parameters": False,
}


def find(name: str) -> Any:
    value: Any = smp
    for part in name.split("."):
        value = getattr(value, part)
    return value


def spelled(function: Any, *, bound: bool) -> str:
    """Return the arguments with their defaults, without annotations."""
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    words, by_keyword = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not by_keyword:
            words.append("|")
            by_keyword = True
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(f"{star}{parameter.name}{default}")
    return ", ".join(words).replace("|, ", "| ")


@pytest.mark.parametrize(("name", "arguments"), NAMES.items())
def test_functions(name: str, arguments: str) -> None:
    assert spelled(find(name), bound=False) == arguments


@pytest.mark.parametrize(("name", "arguments"), METHODS.items())
def test_methods(name: str, arguments: str) -> None:
    assert spelled(find(name), bound=True) == arguments


def test_the_model_s_arguments() -> None:
    named = inspect.signature(smp.DistributedModel).parameters
    value = {name: parameter.default for name, parameter in named.items() if name not in ("module", "others")}
    value |= {option.name: option.default for option in fields(ReductionOptions)}
    assert value == MODEL_ARGUMENTS
    assert next(iter(named)) == "module"
    assert isinstance(smp.DistributedModel.partitioned, property)


def test_groups_and_kinds_of_ranks() -> None:
    groups = ["WORLD", "MP_GROUP", "DP_GROUP", "PP_GROUP", "TP_GROUP", "RDP_GROUP"]
    assert [group.name for group in smp.CommGroup] == groups
    assert [getattr(smp, name) for name in groups] == list(smp.CommGroup)
    assert {"WORLD_RANK", "MP_RANK", "DP_RANK", "PP_RANK"} <= {kind.name for kind in smp.RankType}


def test_a_step_output_has_its_microbatches() -> None:
    output = smp.StepOutput([torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert [part.tolist() for part in output.outputs] == [[1, 2], [3, 4]]
    assert output.reduce_mean().tolist() == [2.0, 3.0]
    assert output.reduce_sum().tolist() == [4, 6]
    assert output.concat().tolist() == [1, 2, 3, 4]
    assert output.stack().tolist() == [[1, 2], [3, 4]]


def test_the_layers_that_torch_has() -> None:
    assert smp.nn.FusedLayerNorm((4,), eps=1e-5, elementwise_affine=True)(torch.ones(2, 4)).shape == (2, 4)
    assert smp.nn.checkpoint_sequential is smp.checkpoint_sequential


@pytest.mark.parametrize("name", ["optimizers", "nn.FlashAttentionLayer"])
def test_an_unavailable_name_lists_the_alternatives(name: str) -> None:
    with pytest.raises(ParallelError, match=rf"smp\.{name} is not available: .* Take any"):
        find(name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"non_split_inputs": ["scale"]}, r"non_split_inputs=...\): .*step has no argument 'scale'; it has a, b"),
        ({"input_split_axes": {"c": 1}}, r"input_split_axes=...\): .*step has no argument 'c'; it has a, b"),
    ],
)
def test_a_step_s_setting_for_no_argument_is_refused(settings: dict[str, Any], message: str) -> None:
    def step(a: Any, b: Any) -> None: ...

    with pytest.raises(ParallelError, match=message):
        smp.step(**settings)(step)
