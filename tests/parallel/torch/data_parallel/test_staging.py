"""The way of buckets through staging: gloo stands in for NCCL, the host's memory for a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.subsets import join_lane
from herringbone_parallel.torch.data_parallel.device import Wait
from herringbone_parallel.torch.data_parallel.intra_host import IntraHost
from herringbone_parallel.torch.data_parallel.staging import Stager
from tests.parallel.reduce.conftest import World, world  # noqa: F401  a fixture

PATIENCE = timedelta(seconds=30)


class HostMemory:
    """The host's memory in the role of a device: there are no streams, and copies are complete at once."""

    def leaving(self, _: torch.Tensor) -> AbstractContextManager[object]:
        """Do nothing: the tensor is complete."""
        return nullcontext()

    def landing(self, *_: torch.Tensor) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    def copy_out(self, part: torch.Tensor, raise_lost: Wait) -> tuple[torch.Tensor, Wait]:
        """Copy at once."""
        return part.clone(), raise_lost

    def future(self, _: torch.Tensor) -> Any:
        """Return a future without a device."""
        return torch.futures.Future()


class Staged:
    """Ranks in threads, the same number on each host, and the stager of each rank."""

    def __init__(self, ranks: World) -> None:
        self.ranks, self.stores = ranks, dist.HashStore()
        self.lanes: dict[int, Engine] = {}
        self.stagers: dict[int, Stager] = {}
        ranks.run(self._make_stager)

    def _make_stager(self, engine: Engine) -> None:
        topology, size = engine.topology, engine.local_size
        prefix = f"inside/{topology.host(engine.rank)}"
        scatters, gathers = (
            ProcessGroupGloo(PrefixStore(f"{prefix}/{name}", self.stores), engine.local_rank, size, timeout=PATIENCE)
            for name in ("scatters", "gathers")
        )
        lane = join_lane(engine, self.stores.set, lambda key: self.stores.get(key).decode())
        self.lanes[engine.rank] = lane
        self.stagers[engine.rank] = Stager(engine, HostMemory(), IntraHost(scatters, gathers, size), lane)

    def sums(self, of: Callable[[int], list[torch.Tensor]], operation: str = "sum") -> list[list[torch.Tensor]]:
        """Sum the tensors that `of` returns for each rank, all at once; return each rank's results."""

        def work(engine: Engine) -> list[torch.Tensor]:
            tensors = of(engine.rank)
            for work_object in [self.stagers[engine.rank].start(tensor, operation) for tensor in tensors]:
                work_object.wait()
            return tensors

        return self.ranks.run(work)

    def close(self) -> None:
        self.ranks.run(lambda engine: self.stagers[engine.rank].close())


@pytest.fixture
def staged(world: Callable[..., World]) -> Iterator[Callable[..., Staged]]:  # noqa: F811
    jobs: list[Staged] = []

    def make(hosts: str, helpers: int = 0) -> Staged:
        jobs.append(Staged(world(hosts, helpers, "python", join_timeout=20.0)))
        return jobs[-1]

    yield make
    for staged_job in jobs:
        staged_job.close()


def tensor_of(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(1000 * rank + count)).to(dtype)


@pytest.mark.parametrize(("hosts", "helpers"), [("aabb", 0), ("aabbcc", 1), ("ababab", 0)])
@pytest.mark.parametrize("operation", ["sum", "average"])
def test_sums_are_those_of_all_ranks_and_have_the_same_bits_on_all(staged, hosts, helpers, operation):
    """Several buckets are in flight at once, with sizes that are not multiples of the ranks of a host, too."""
    sizes = (10_000, 4_097, 1, 64)
    results = staged(hosts, helpers).sums(lambda rank: [tensor_of(rank, size) for size in sizes], operation)
    for index, size in enumerate(sizes):
        expected = sum(tensor_of(rank, size).double() for rank in range(len(hosts)))
        expected = expected / len(hosts) if operation == "average" else expected
        torch.testing.assert_close(results[0][index].double(), expected, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(results[0][index], other[index]) for other in results)


def test_a_host_s_sum_crosses_the_network_once(staged):
    """Two hosts of two: each rank exchanges its half of the bucket."""
    job, count = staged("aabb"), 100_000
    before = {rank: lane.stats().sent_bytes for rank, lane in job.lanes.items()}
    job.sums(lambda rank: [tensor_of(rank, count)])
    sent = {rank: lane.stats().sent_bytes - before[rank] for rank, lane in job.lanes.items()}
    for ranks in ((0, 1), (2, 3)):
        assert sum(sent[rank] for rank in ranks) == pytest.approx(count * 4, rel=0.02)
    assert not any(engine.stats().buffers for engine in job.ranks.engines)


def test_types_and_layouts(staged):
    def of(rank):
        return [
            tensor_of(rank, 1_000, torch.bfloat16),
            tensor_of(rank, 1_000, torch.float64),
            tensor_of(rank, 600).view(20, 30).t(),
            tensor_of(rank, 2_000)[::2],
        ]

    results = staged("aabb").sums(of)
    for index, tensor in enumerate(of(0)):
        expected = sum(of(rank)[index].double() for rank in range(4))
        tolerance = 0.05 if tensor.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(results[0][index].double(), expected, rtol=tolerance, atol=tolerance)
        assert all(torch.equal(results[0][index], other[index]) for other in results)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_averages_of_16_bits_are_computed_in_fp32(staged, dtype):
    """Regression: the host's own sum of two times 40,000 was inf in fp16."""

    def of(rank):
        return [torch.full((1_001,), 40_000, dtype=dtype), tensor_of(rank, 5_000, dtype)]

    results = staged("aabb").sums(of, "average")
    expected = sum(of(rank)[1].float() for rank in range(4)) / 4
    for large, ordinary in results:
        assert torch.equal(large, of(0)[0])
        # Rounded once: half a unit in the last place of the type.
        torch.testing.assert_close(ordinary.float(), expected, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def test_one_rank_per_host_needs_no_sum_inside_the_host(world):  # noqa: F811
    ranks = world("abc", 1, "python")
    stagers = {engine.rank: Stager(engine, HostMemory()) for engine in ranks.engines}

    def work(engine):
        tensor = tensor_of(engine.rank, 5_000)
        stagers[engine.rank].start(tensor, "average").wait()
        return tensor

    results = ranks.run(work)
    expected = sum(tensor_of(rank, 5_000).double() for rank in range(3)) / 3
    torch.testing.assert_close(results[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(results[0], other) for other in results)
    for stager in stagers.values():
        stager.close()


def test_a_failure_is_raised_by_wait(world):  # noqa: F811
    """A sum that the engine refuses raises the engine's reason."""
    ranks = world("ab", 0, "python")
    stager = Stager(ranks.engines[0], HostMemory())
    with pytest.raises(RuntimeError, match="complex64' cannot be summed"):
        stager.start(torch.zeros(3, dtype=torch.complex64), "sum").wait()
    stager.close()


class Lost:
    """An engine that has lost a rank, with its message."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def all_reduce(self, *_: Any, **__: Any) -> Any:
        raise ParallelError(self.failure)

    def close(self) -> None: ...


class Alone:
    """The ranks of a host with one rank."""

    size = 1

    def scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def shutdown(self) -> None: ...


def test_a_lost_rank_is_named_by_its_number_in_the_job():
    stager = Stager(Lost("rank 3 on b is gone"), HostMemory(), Alone(), Lost("rank 1 on b, lane 1 is gone"))
    with pytest.raises(RuntimeError, match="rank 3 on b is gone"):
        stager.start(torch.zeros(3), "sum").wait()
    stager.close()
