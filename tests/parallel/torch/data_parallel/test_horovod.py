"""Horovod's names for PyTorch, as Horovod's example scripts use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.horovod import refusing
from herringbone_parallel.torch.horovod import api as hvd
from tests.parallel.torch.data_parallel.ranks import JobRanks


def every_operation() -> dict[str, Any]:
    hvd.init()
    hvd.init()
    rank = hvd.rank()
    mine = torch.tensor([1.0, 2.0]) * (rank + 1)
    handle = hvd.allreduce_async_(torch.full((2,), float(rank)), op=hvd.Sum)
    results = {
        "place": (rank, hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.is_initialized()),
        "mean": hvd.allreduce(mine, name="loss").tolist(),
        "sum": hvd.allreduce(mine, average=False).tolist(),
        "scaled": hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist(),
        "fp16": hvd.allreduce(mine, compression=hvd.Compression.fp16).tolist(),
        "most": hvd.allreduce(mine, op=hvd.Max).tolist(),
        "least": hvd.allreduce(torch.tensor([5 - rank]), op=hvd.Min).tolist(),
        "whole": hvd.allreduce(torch.tensor([rank, 7], dtype=torch.int16), op=hvd.Sum).tolist(),
        "whole_mean": hvd.allreduce(torch.tensor([3 + rank])).tolist(),
        "kept": mine.tolist(),
        "pending": (hvd.synchronize(handle).tolist(), hvd.poll(handle)),
        "in_place": hvd.allreduce_(mine.clone()).tolist(),
        "gathered": hvd.allgather(torch.arange(2 * (rank + 1)).reshape(-1, 2)).tolist(),
        "given": hvd.broadcast(mine, root_rank=1).tolist(),
        "object": hvd.broadcast_object({"epoch": rank}, root_rank=1),
        "objects": hvd.allgather_object(rank),
    }
    hvd.barrier()
    hvd.shutdown()
    return results


def test_operations_on_tensors_and_objects(pair: JobRanks) -> None:
    for rank, results in enumerate(pair.run(every_operation)):
        assert results == {
            "place": (rank, 2, rank, 2, True),
            "mean": [1.5, 3.0],
            "sum": [3.0, 6.0],
            "scaled": [3.0, 6.0],
            "fp16": [1.5, 3.0],
            "most": [2.0, 4.0],
            "least": [4],
            "whole": [1, 14],
            "whole_mean": [3],
            "kept": [float(rank + 1), 2.0 * (rank + 1)],
            "pending": ([1.0, 1.0], True),
            "in_place": [1.5, 3.0],
            "gathered": [[0, 1], [0, 1], [2, 3]],
            "given": [2.0, 4.0],
            "object": {"epoch": 1},
            "objects": [0, 1],
        }


def train(passes: int, compression: str | None) -> list[torch.Tensor]:
    """Train four steps like Horovod's MNIST example, from weights that differ until they are broadcast."""
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    if hvd.rank() == 0:
        model.load_state_dict(weights())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + hvd.rank()), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        backward_passes_per_step=passes,
        op=hvd.Average,
    )
    assert isinstance(optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for inputs, targets in batches(hvd.rank(), passes):
        optimizer.zero_grad()
        for part, target in zip(inputs.chunk(passes), targets.chunk(passes), strict=True):
            (F.cross_entropy(model(part), target) / passes).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        scheduler.step()
    hvd.shutdown()
    return [parameter.detach() for parameter in model.parameters()]


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).state_dict()


def batches(rank: int, passes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(100 + rank)
    return [(torch.randn(4 * passes, 8), torch.randint(3, (4 * passes,))) for _ in range(4)]


def alone(passes: int) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    model.load_state_dict(weights())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for pair in zip(batches(0, passes), batches(1, passes), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.cat([x for x, _ in pair])), torch.cat([y for _, y in pair])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(("passes", "compression"), [(1, None), (2, None), (1, hvd.Compression.fp16)])
def test_the_distributed_optimizer_makes_the_steps_of_the_joined_batch(
    pair: JobRanks, passes: int, compression: str | None
) -> None:
    ours = pair.run(train, passes, compression)
    for one, other, expected in zip(*ours, alone(passes), strict=True):
        assert torch.equal(one, other)
        assert (one - expected).abs().max() <= 1e-6


def unused_and_sparse() -> tuple[list[float], list[float]]:
    hvd.init()
    torch.manual_seed(0)
    table, unused = nn.Embedding(4, 2, sparse=True), nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*table.parameters(), *unused.parameters()], lr=1.0), sparse_as_dense=True
    )
    (table(torch.tensor([hvd.rank()])) * torch.tensor([1.0, 2.0])).sum().backward()
    optimizer.step()
    gradients = table.weight.grad.flatten().tolist(), unused.weight.grad.flatten().tolist()
    hvd.shutdown()
    return gradients


def test_unused_parameters_count_as_zero_and_sparse_gradients_are_made_dense(pair: JobRanks) -> None:
    assert pair.run(unused_and_sparse) == [([0.5, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0])] * 2


def mistakes() -> list[str]:
    messages = []

    def refused(call: Any) -> None:
        with pytest.raises(ParallelError) as error:
            call()
        messages.append(str(error.value))

    refused(hvd.rank)
    hvd.init()
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    model(torch.ones(1, 2)).sum().backward()
    refused(optimizer.zero_grad)
    refused(lambda: model(torch.ones(1, 2)).sum().backward())
    optimizer.step()
    refused(lambda: hvd.DistributedOptimizer(sgd, named_parameters=[("weight", model.weight)]))
    refused(lambda: hvd.DistributedOptimizer(sgd, op=hvd.Max))
    refused(lambda: hvd.DistributedOptimizer(sgd, gradient_predivide_factor=2.0))
    refused(lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum))
    refused(lambda: hvd.allreduce(model.weight))
    hvd.shutdown()
    return messages


def test_mistakes_are_named(lone: JobRanks) -> None:
    messages = lone.run(mistakes)[0]
    for text, words in zip(
        messages,
        [
            "hvd.init() has not been called",
            "call step() or synchronize() first",
            "was computed 2 times since the last step",
            "leaves out 1 of the optimizer's 2 parameters",
            "hvd.Average or hvd.Sum",
            "gradient_predivide_factor",
            "give one of them",
            "tensor.detach()",
        ],
        strict=True,
    ):
        assert words in text


def test_a_name_that_is_absent_is_refused_by_name() -> None:
    refuse = refusing("horovod.torch")
    with pytest.raises(ParallelError, match=r"^hvd.join: .* give all ranks the same number of batches"):
        refuse("join")
    # `hasattr` answers False.
    with pytest.raises(AttributeError, match=r"^hvd.no_such_name: .* use one of horovod.torch.__all__"):
        refuse("no_such_name")
