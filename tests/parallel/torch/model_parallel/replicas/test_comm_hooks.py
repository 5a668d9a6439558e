"""Communication hooks, those of torch and those of a script, reduce the gradients of replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

FOUR = {"partitions": 2, "replicas": 2, "ddp": True}


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


def overlap() -> Any:
    """Return the events of the second step in their order: backwards that end, and buckets that leave."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module, bucket_cap_mb=0.0001)
    events: list[str] = []

    def hook(group: Any, bucket: Any) -> Any:
        events.append(f"bucket {bucket.index()}")
        return allreduce_hook(group, bucket)

    model.register_comm_hook(smp.get_dp_process_group(), hook)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(loss_of(model(inputs), target))
        events.append("a backward ended")

    train_step(inputs, target)
    events.clear()
    train_step(inputs, target)
    return events


def test_buckets_leave_before_the_last_backward_ends(ranks: Ranks) -> None:
    for events in ranks.run(overlap, {**FOUR, "microbatches": 4}):
        last = max(position for position, event in enumerate(events) if event == "a backward ended")
        assert events.index("bucket 0") < last
        buckets = [event for event in events if event.startswith("bucket")]
        assert buckets == [f"bucket {index}" for index in range(len(buckets))]
        assert len(buckets) > 1


def train_with_hook(name: str) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Tied")
    model = smp.DistributedModel(module)
    hook = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16 around": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    }[name]
    model.register_comm_hook(smp.get_dp_process_group(), hook)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(loss_of(model(inputs), target))

    for _ in range(2):
        model.zero_grad()
        train_step(*(tensor.chunk(2)[smp.dp_rank()] for tensor in (inputs, target)))
    return {name: p.grad for name, p in model.local_named_parameters()}


@pytest.mark.parametrize(("name", "tolerance"), [("allreduce", 1e-6), ("fp16", 1e-3), ("bf16 around", 1e-2)])
def test_torchs_communication_hooks_work(ranks: Ranks, name: str, tolerance: float) -> None:
    module, inputs, target = models.build("Tied")
    for part, labels in zip(inputs.chunk(4), target.chunk(4), strict=True):
        (loss_of(module(part), labels) / 4).backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    for gradients in ranks.run(train_with_hook, {**FOUR, "microbatches": 2}, name):
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[key], atol=tolerance, rtol=0)


def register(*hooks: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(models.build("Chain")[0])
    for hook in hooks:
        state = None if hook == "no group" else smp.get_dp_process_group()
        model.register_comm_hook(state, default_hooks.allreduce_hook)


@pytest.mark.parametrize(
    ("parameters", "hooks", "message"),
    [
        (FOUR, ["no group"], r"pass smp\.get_dp_process_group\(\) as its state"),
        (FOUR, ["one", "another"], "a model has one communication hook"),
        ({"partitions": 2}, ["one"], "for replicas of the pipeline .ddp., which this job has not"),
    ],
)
def test_a_hook_that_would_do_harm_is_refused(
    ranks: Ranks, parameters: dict[str, Any], hooks: list[str], message: str
) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(register, dict(parameters), *hooks)
