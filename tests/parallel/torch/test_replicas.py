"""Replicas of a pipeline train as one process on all their data: same losses, same gradients, same weights."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

STEPS = 5
FOUR = {"partitions": 2, "replicas": 2, "ddp": True}


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


def train(name: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    """What a user's script does, as one rank of several: each replica takes its part of the batch."""
    import herringbone_parallel.torch as smp

    module, inputs, target = models.build(name)
    module, inputs = module.to(dtype), inputs.to(dtype)
    inputs = inputs.chunk(smp.dp_size())[smp.dp_rank()]
    target = target.chunk(smp.dp_size())[smp.dp_rank()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    model = smp.DistributedModel(module, **options)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(inputs), target)
        model.backward(loss)
        return loss

    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = train_step(inputs, target).reduce_mean()
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
        gradients.append({key: p.grad for key, p in model.local_named_parameters()})
        gradients[-1] = {key: None if grad is None else grad.clone() for key, grad in gradients[-1].items()}
        optimizer.step()
    return losses, gradients, model.state_dict(), smp.dp_rank()


def train_alone(name: str, dtype: torch.dtype, parts: int) -> Any:
    module, inputs, target = models.build(name)
    module, inputs = module.to(dtype), inputs.to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    losses, gradients = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for part, wanted in zip(inputs.chunk(parts), target.chunk(parts), strict=True):
            share = loss_of(module(part), wanted) / parts
            share.backward()
            loss += share.item()
        gradients.append({key: None if p.grad is None else p.grad.clone() for key, p in module.named_parameters()})
        optimizer.step()
        losses.append(loss)
    return losses, gradients, module.state_dict()


def assert_equal(found: list[Any], expected: Any, tolerance: float) -> None:
    losses, gradients, weights = expected
    for rank_losses, rank_gradients, rank_weights, _ in found:
        assert rank_losses == pytest.approx(losses, abs=tolerance)
        for here, there in zip(rank_gradients, gradients, strict=True):
            for key, gradient in here.items():
                assert (gradient is None) == (there[key] is None), key
                if gradient is not None:
                    torch.testing.assert_close(gradient, there[key], atol=tolerance, rtol=0, msg=key)
        for key, weight in weights.items():
            torch.testing.assert_close(rank_weights[key], weight, atol=tolerance, rtol=0, msg=key)
    for one in found:
        for other in found:
            assert all(torch.equal(one[2][key], other[2][key]) for key in weights), (
                "replicas stay equal to the last bit"
            )


@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("name", ["Chain", "Tied", "Revisited", "Frozen", "OwnParameter", "UnusedOutput"])
def test_two_replicas_of_two_partitions_train_as_one_process_does(
    ranks: Ranks, name: str, microbatches: int, pipeline: str
) -> None:
    found = ranks.run(train, {**FOUR, "microbatches": microbatches, "pipeline": pipeline}, name, torch.float32, {})
    assert_equal(found, train_alone(name, torch.float32, 2 * microbatches), 1e-6)


@pytest.mark.parametrize("name", ["Chain", "Tied", "Revisited"])
def test_in_double_precision_they_are_equal_to_1e_12(ranks: Ranks, name: str) -> None:
    found = ranks.run(train, {**FOUR, "microbatches": 2}, name, torch.float64, {})
    assert_equal(found, train_alone(name, torch.float64, 4), 1e-12)


@pytest.mark.parametrize("placement", ["spread", "PTD", "TDP"])
def test_wherever_the_ranks_of_a_pipeline_are_placed(ranks: Ranks, placement: str) -> None:
    found = ranks.run(train, {**FOUR, "microbatches": 2, "placement_strategy": placement}, "Tied", torch.float32, {})
    assert_equal(found, train_alone("Tied", torch.float32, 4), 1e-6)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_replicas_of_a_whole_model(ranks: Ranks, microbatches: int) -> None:
    found = ranks.run(
        train,
        {"partitions": 1, "replicas": 2, "ddp": True, "microbatches": microbatches},
        "Revisited",
        torch.float32,
        {},
    )
    assert_equal(found, train_alone("Revisited", torch.float32, 2 * microbatches), 1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.0005},
        {"overlapping_allreduce": False, "bucket_cap_mb": 0.0005},
        {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005},
        {"find_unused_parameters": True, "broadcast_buffers": False},
    ],
)
@pytest.mark.parametrize("name", ["Chain", "BranchOnData"])
def test_how_gradients_travel_changes_no_result(ranks: Ranks, name: str, options: dict[str, Any]) -> None:
    """Of BranchOnData's two branches a microbatch takes one, by its data: replicas use different parameters."""
    found = ranks.run(train, {**FOUR, "microbatches": 4}, name, torch.float32, options)
    assert_equal(found, train_alone(name, torch.float32, 8), 1e-6)


class Detour(nn.Module):
    """Takes a way of its own for inputs that ask for it, before all else: its gradients are the last to come."""

    def __init__(self) -> None:
        super().__init__()
        self.detour = nn.Linear(models.WIDTH, models.WIDTH)
        self.first = nn.Linear(models.WIDTH, 16)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(16, models.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 5:
            x = self.detour(x)
        return self.head(self.first(x))


def batch_with_detours(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of four microbatches the last two ask for the detour from the second step on."""
    _, inputs, target = models.build("Chain")
    inputs[:, 0] = 0.0
    if step:
        inputs[4:, 0] = 9.0
    return inputs, target


def train_with_detours() -> Any:
    import herringbone_parallel.torch as smp

    torch.manual_seed(3)
    model = smp.DistributedModel(Detour())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(loss_of(model(inputs), target))

    unused = []
    for step in range(STEPS):
        inputs, target = (tensor.chunk(2)[smp.dp_rank()] for tensor in batch_with_detours(step))
        optimizer.zero_grad()
        train_step(inputs, target)
        unused.append(sorted(name for name, p in model.local_named_parameters() if p.grad is None))
        optimizer.step()
    return unused, model.state_dict()


def test_a_module_that_one_replica_uses_is_trained_in_all(ranks: Ranks) -> None:
    """Replica 1 adds to gradients that had left, as unused before; replica 0 has to hear of it."""
    torch.manual_seed(3)
    module = Detour()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, target = batch_with_detours(step)
        optimizer.zero_grad()
        for part, wanted in zip(inputs.chunk(4), target.chunk(4), strict=True):
            (loss_of(module(part), wanted) / 4).backward()
        optimizer.step()
    for unused, weights in (found := ranks.run(train_with_detours, {**FOUR, "microbatches": 2})):
        for step, names in enumerate(unused):
            assert not [name for name in names if not name.startswith(("never", "detour") if step == 0 else "never")]
        for name, weight in module.state_dict().items():
            torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=0)
    of_all = {name for unused, _ in found for name in unused[-1]}
    assert of_all == {"never.weight", "never.bias"}


def unequal_starts(dropout: bool) -> Any:
    """Each replica makes other parameters and buffers; what they have after the partition, and one loss each."""
    import herringbone_parallel.torch as smp

    inputs = models.build("Chain")[1]
    torch.manual_seed(smp.dp_rank())
    module = models.Dropped() if dropout else models.Normed()
    for buffer in module.buffers():
        buffer.add_(smp.dp_rank())
    model = smp.DistributedModel(module, broadcast_buffers=not dropout)
    states = []
    model.register_post_partition_hook(lambda model: states.append(model.local_state_dict()))
    evaluate = smp.step(lambda inputs: model(inputs))
    with torch.no_grad():
        output = evaluate(inputs).concat()
    return states[0], output


def test_every_replica_starts_from_the_first_ones_parameters_and_buffers(ranks: Ranks) -> None:
    zero, one, two, three = (state for state, _ in ranks.run(unequal_starts, dict(FOUR), False))
    assert zero.keys() == two.keys()
    assert all(torch.equal(zero[key], two[key]) for key in zero if torch.is_tensor(zero[key]))
    assert all(torch.equal(one[key], three[key]) for key in one if torch.is_tensor(one[key]))


def test_replicas_that_are_seeded_apart_drop_apart(ranks: Ranks) -> None:
    """The generator is each process's own, as with DistributedDataParallel."""
    zero, one, two, three = (output for _, output in ranks.run(unequal_starts, dict(FOUR), True))
    assert torch.equal(zero, one)
    assert torch.equal(two, three)
    assert not torch.equal(zero, two)


def overlap() -> Any:
    """The order of events in the second step: gradients that become final, and buckets that leave."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    import herringbone_parallel.torch as smp

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
        last = max(place for place, event in enumerate(events) if event == "a backward ended")
        assert events.index("bucket 0") < last
        buckets = [event for event in events if event.startswith("bucket")]
        assert buckets == [f"bucket {index}" for index in range(len(buckets))]
        assert len(buckets) > 1


def train_with_hook(name: str) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import herringbone_parallel.torch as smp

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
def test_torchs_communication_hooks_serve(ranks: Ranks, name: str, tolerance: float) -> None:
    module, inputs, target = models.build("Tied")
    for part, wanted in zip(inputs.chunk(4), target.chunk(4), strict=True):
        (loss_of(module(part), wanted) / 4).backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    for gradients in ranks.run(train_with_hook, {**FOUR, "microbatches": 2}, name):
        for key, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[key], atol=tolerance, rtol=0)


def register(*hooks: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import herringbone_parallel.torch as smp

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


def part(how: str) -> None:
    """Rank 3 leaves the others in the third step, each time in another way."""
    import herringbone_parallel.torch as smp
    from herringbone_parallel.torch.failures import PeerFailedError

    class Last(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Last.calls += 1
            if smp.rank() == 3 and Last.calls > 4:
                if how == "dies":
                    os._exit(9)
                if how == "raises":
                    raise ZeroDivisionError("boom in the last layer")
            return super().forward(x)

    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Last(6, 1)))

    @smp.step
    def train_step(inputs: torch.Tensor) -> None:
        model.backward(model(inputs).mean())

    for step in range(4):
        if how == "ends" and step == 2 and smp.dp_rank() == 1:
            return
        began = time.monotonic()
        try:
            train_step(torch.randn(4, 6))
        except PeerFailedError:
            assert time.monotonic() - began < 5
            with pytest.raises(PeerFailedError, match="an earlier step failed"):
                train_step(torch.randn(4, 6))
            raise


def test_a_failure_in_one_replica_is_named_in_all(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(part, {**FOUR, "microbatches": 2}, "raises")
    told = (
        "PeerFailedError: another replica failed: rank 3, of the replica on ranks [2, 3]:"
        " ZeroDivisionError: boom in the last layer (in module 2)"
    )
    for rank, text in enumerate(str(caught.value).split("\nrank ")):
        assert (told if rank < 2 else "boom in the last layer") in text


def test_a_replica_that_dies_is_named_in_the_others() -> None:
    """One rank sees a broken connection, of three it is waiting for: who is gone, the dead one's pipeline knows."""
    pool = Ranks()
    with pytest.raises(RankFailedError) as caught:
        pool.run(part, {**FOUR, "microbatches": 2}, "dies")
    text = str(caught.value)
    assert "rank 3:\ndied" in text
    assert (
        text.count("of the replica on ranks [2, 3]: PeerFailedError: lost contact with pipeline rank 1 (rank 3)") == 2
    )


def test_a_replica_that_makes_fewer_steps_is_named_not_waited_for(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(part, {**FOUR, "microbatches": 2}, "ends")
    text = str(caught.value)
    for rank in (0, 1):
        assert f"rank {rank + 2} has ended while rank {rank} waits for its gradients" in text
