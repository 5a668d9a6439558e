"""The functions and the model wrapper of SMDDP v1, as AWS's examples use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.data_parallel import distributed as dist
from herringbone_parallel.torch.data_parallel.parallel import DistributedDataParallel
from tests.parallel.torch.data_parallel.ranks import JobRanks


def every_function() -> dict[str, Any]:
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, op=dist.ReduceOp.AVERAGE)
    most = torch.tensor([float(rank)])
    dist.all_reduce(most, op=dist.ReduceOp.MAX, async_op=True).wait()
    given = torch.tensor([rank])
    dist.broadcast(given, src=1)
    gathered = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(gathered, torch.tensor([float(rank)]), group=dist.group.WORLD)
    swapped = torch.zeros(2)
    dist.all_to_all_single(swapped, torch.tensor([0.0, 1.0]) + 10 * rank)
    dist.barrier()
    return {
        "place": (dist.get_rank(), dist.get_world_size(), dist.get_local_rank(), dist.is_initialized()),
        "mean": mean.item(),
        "most": most.item(),
        "given": given.item(),
        "gathered": [tensor.item() for tensor in gathered],
        "swapped": swapped.tolist(),
    }


def test_every_function_of_v1(pair: JobRanks) -> None:
    for rank, results in enumerate(pair.run(every_function)):
        assert results == {
            "place": (rank, 2, rank, True),
            "mean": 0.5,
            "most": 1.0,
            "given": 1,
            "gathered": [0.0, 1.0],
            "swapped": [rank, rank + 10],
        }


def train() -> tuple[list[float], list[float]]:
    dist.init_process_group()
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(2, 1), device_ids=None, broadcast_buffers=False, bucket_cap_mb=25)
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
    return model.module.weight.tolist()[0], model.module.weight.grad.tolist()[0]


def test_v1s_distributed_data_parallel_averages_and_has_no_sync(pair: JobRanks) -> None:
    (one, gradient), (other, _) = pair.run(train)
    assert one == other
    assert gradient == [1.5, 1.5]


def refusals() -> list[str]:
    messages = []
    for call in (
        lambda: DistributedDataParallel(torch.nn.Linear(1, 1)),
        lambda: dist.init_process_group("mpi"),
        lambda: dist.init_process_group(init_method="tcp://10.0.0.1:23456"),
    ):
        with pytest.raises(ParallelError) as refused:
            call()
        messages.append(str(refused.value))
    return messages


def test_arguments_without_effect_are_refused(lone: JobRanks) -> None:
    before, backend, method = lone.run(refusals)[0]
    assert "init_process_group(): call that first" in before
    assert "init_process_group('mpi'): on this host it is 'smddp', 'gloo', or left out" in backend
    assert "tcp://10.0.0.1:23456" in method
