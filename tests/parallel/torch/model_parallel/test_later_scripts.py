"""The names and calls of AWS's later example scripts for model parallelism: GPT-2, GPT-J, GPT-NeoX, Falcon and T5."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import Ranks

TWO = {"partitions": 2, "microbatches": 2}
ONE = {"partitions": 1, "microbatches": 1}


def hooked() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

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
