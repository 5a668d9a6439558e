"""`init_process_group("smddp")`: the engine sums, and torch's own groups do everything else."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import session
from herringbone_parallel.torch.data_parallel.backend import register
from tests.parallel.torch.data_parallel.ranks import JobRanks, part
from tests.parallel.torch.ranks import free_port


def join() -> int:
    register()
    dist.init_process_group("smddp")
    return dist.get_rank()


def every_collective() -> dict[str, Any]:
    rank = join()
    mine = torch.tensor([1.0, 2.0]) * (rank + 1)
    summed, mean, most = mine.clone(), mine.clone(), mine.clone()
    dist.all_reduce(summed)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    whole = torch.tensor([rank + 1])
    dist.all_reduce(whole)
    buffers = session.current().stats().buffers
    gathered = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(gathered, mine)
    given = torch.full((2,), float(rank))
    dist.broadcast(given, src=1)
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    if rank == 0:
        dist.send(mine, 1)
    else:
        dist.recv(mine, 0)
    dist.barrier()
    return {
        "names": (dist.get_backend(), dist.is_initialized()),
        "summed": summed.tolist(),
        "mean": mean.tolist(),
        "most": most.tolist(),
        "whole": whole.tolist(),
        "buffers": buffers,
        "gathered": [tensor.tolist() for tensor in gathered],
        "given": given.tolist(),
        "objects": objects,
        "received": mine.tolist(),
    }


def test_sums_and_averages_of_floats_are_the_engines_and_the_rest_is_gloos(pair: JobRanks) -> None:
    for results in pair.run(every_collective):
        assert results == {
            "names": ("smddp", True),
            "summed": [3.0, 6.0],
            "mean": [1.5, 3.0],
            "most": [2.0, 4.0],
            "whole": [3],
            "buffers": 2,
            "gathered": [[1.0, 2.0], [2.0, 4.0]],
            "given": [1.0, 1.0],
            "objects": [{"rank": 0}, {"rank": 1}],
            "received": [1.0, 2.0],
        }


def unusual_tensors() -> list[Any]:
    rank = join()
    kinds = [torch.float16, torch.bfloat16, torch.float64]
    results: list[Any] = []
    for kind in kinds:
        tensor = torch.ones(3, dtype=kind) * (rank + 1)
        dist.all_reduce(tensor)
        results.append((str(tensor.dtype), tensor.tolist()))
    columns = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(columns)
    empty = torch.empty(0)
    dist.all_reduce(empty)
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    dist.all_reduce(odd)
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (2,))
    dist.all_reduce(sparse)
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    return [
        *results,
        columns.tolist(),
        empty.tolist(),
        str(odd.tolist()),
        sparse.to_dense().tolist(),
        future.wait()[0].item(),
    ]


def test_types_layouts_and_values_that_are_unusual(pair: JobRanks) -> None:
    for results in pair.run(unusual_tensors):
        assert results == [
            ("torch.float16", [3.0] * 3), ("torch.bfloat16", [3.0] * 3), ("torch.float64", [3.0] * 3),
            [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]], [], "[nan, inf, 2.0]", [1.0, 1.0], 2.0,
        ]  # fmt: skip


def parts_of_the_job() -> tuple[list[float], int]:
    rank = join()
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    both = dist.new_group([0, 1])
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=alone)
    dist.all_reduce(tensor, group=both)
    return tensor.tolist(), session.current().stats().buffers


def test_groups_of_some_ranks_are_torchs(pair: JobRanks) -> None:
    assert pair.run(parts_of_the_job) == [([2.0, 2.0], 0)] * 2


def join_twice(other_port: int) -> tuple[float, int]:
    before = set(threading.enumerate())
    for port in (os.environ["MASTER_PORT"], str(other_port)):
        os.environ["MASTER_PORT"] = port
        join()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        part()
    return tensor.item(), len(set(threading.enumerate()) - before)


def test_destroy_leaves_nothing_behind_and_a_job_can_join_again(pair: JobRanks) -> None:
    assert pair.run(join_twice, free_port()) == [(2.0, 0)] * 2


def contradict_the_launcher() -> str:
    register()
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    with pytest.raises(ParallelError) as refused:
        dist.init_process_group("smddp", store=store, rank=0, world_size=1)
    return str(refused.value)


def test_a_rank_that_contradicts_the_launcher_is_refused(pair: JobRanks) -> None:
    message = pair.run(contradict_the_launcher)[1]
    assert message.startswith(
        "init_process_group(rank=0, world_size=1), but the job's launcher made this process rank 1"
    )
