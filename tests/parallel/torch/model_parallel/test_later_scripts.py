"""The names and calls of AWS's later example scripts for model parallelism: GPT-2, GPT-J, GPT-NeoX, Falcon and T5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import herringbone_parallel.torch.model_parallel.api as smp
from herringbone_parallel.core.script_settings import WITHOUT_EFFECT
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import Ranks

TWO = {"partitions": 2, "microbatches": 2}
ONE = {"partitions": 1, "microbatches": 1}
PAGE = Path(__file__).parents[4] / "docs/do/model-parallel-pytorch.md"

# The names after `smp.`, `model.` and `optimizer.` in the scripts, without those of tensor parallelism and of shards.
NAMES = (
    "init", "is_initialized", "is_tracing", "step", "barrier", "broadcast", "recv_from", "send", "allgather",
    "rank", "size", "local_rank", "dp_rank", "dp_size", "mp_rank", "pp_rank", "pp_size", "rdp_rank", "rdp_size",
    "tp_rank", "tp_size", "get_tp_group", "get_dp_process_group", "get_mp_process_group", "get_world_process_group",
    "PP_GROUP", "TP_GROUP", "RankType.PP_RANK", "RankType.RDP_RANK", "RankType.TP_RANK",
    "DistributedModel", "DistributedOptimizer", "model_creation", "delay_param_initialization", "set_partition",
    "set_activation_checkpointing", "save", "load", "save_checkpoint", "resume_from_checkpoint", "nn.FusedLayerNorm",
    "amp.GradScaler",
    *(f"DistributedModel.{name}" for name in (
        "backward", "eval", "get_module", "load_state_dict", "local_parameters", "local_state_dict",
        "named_parameters", "parameters", "register_post_partition_hook", "register_post_step_hook", "state_dict",
        "to", "train",
    )),
    *(f"DistributedOptimizer.{name}" for name in (
        "clip_master_grads", "load_state_dict", "local_state_dict", "loss_scale", "state_dict", "step", "zero_grad",
    )),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_the_scripts_exists(name: str) -> None:
    value: Any = smp
    for part in name.split("."):
        value = getattr(value, part)


def test_the_page_says_what_has_no_effect() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [key for key in sorted(WITHOUT_EFFECT) if f"`{key}`" not in page] == []


def hooked() -> Any:
    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.get_module().parameters(), lr=0.1))
    calls: list[Any] = []

    def noted(name: str) -> Any:
        return lambda model, optimizer: calls.append((name, type(model).__name__, type(optimizer).__name__))

    def gradients(model: Any) -> None:
        calls.append(all(parameter.grad is not None for parameter in model.local_parameters()))

    model.register_post_partition_hook(noted("partition"))
    model.register_post_step_hook(noted("step"))
    model.register_post_step_hook(gradients)
    model.register_post_step_hook(noted("removed")).remove()
    # The second parameter has a default, so this is a hook of one argument.
    model.register_post_step_hook(lambda model, name="default": calls.append(name))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    for _ in range(2):
        train_step(inputs, target)
        optimizer.step()
    assert model.get_module() is module
    return calls


@pytest.mark.parametrize("parameters", [ONE, TWO])
def test_hooks_get_the_optimizer_and_are_called_once(ranks: Ranks, parameters: dict[str, Any]) -> None:
    both = ("DistributedModel", "DistributedOptimizer")
    for calls in ranks.run(hooked, dict(parameters)):
        assert calls == [("partition", *both), ("step", *both), True, "default"]
