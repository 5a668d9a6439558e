"""torch's DistributedDataParallel on `smddp`: its extensions, and results equal to gloo's."""

from __future__ import annotations

import gc
import inspect
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import session
from herringbone_parallel.torch.data_parallel.backend import register
from herringbone_parallel.torch.data_parallel.ddp import adopt
from tests.parallel.torch.data_parallel.ranks import JobRanks


def model(seed: int = 0, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    )


def join(backend: str = "smddp") -> int:
    register()
    adopt()
    dist.init_process_group(backend)
    return dist.get_rank()


def train(backend: str, seeds: tuple[int, int], kind: torch.dtype, **settings: Any) -> list[torch.Tensor]:
    """Train five steps on this rank's own batches; return the weights."""
    rank = join(backend)
    net = DistributedDataParallel(model(seeds[rank]).to(kind), **settings)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        net(torch.randn(6, 8, dtype=kind)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def alone(kind: torch.dtype) -> list[torch.Tensor]:
    """Train the same steps in one process, with the mean of both ranks' gradients."""
    nets = [model().to(kind) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for step in range(5):
        for rank, net in enumerate(nets):
            torch.manual_seed(100 * step + rank)
            net.zero_grad()
            net(torch.randn(6, 8, dtype=kind)).square().mean().backward()
        for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            one.grad = other.grad = (one.grad + other.grad) / 2
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach() for parameter in nets[0].parameters()]


def gap(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 1},
    ],
    ids=str,
)
def test_five_steps_give_what_gloo_gives(pair: JobRanks, settings: dict[str, Any]) -> None:
    ours = pair.run(_train_with, "smddp", (0, 0), torch.float32, settings)
    gloos = pair.run(_train_with, "gloo", (0, 0), torch.float32, settings)
    assert gap(ours[0], ours[1]) == 0
    assert gap(ours[0], gloos[0]) <= 1e-6


def _train_with(backend: str, seeds: tuple[int, int], kind: torch.dtype, settings: dict[str, Any]) -> Any:
    return train(backend, seeds, kind, **settings)


def test_five_steps_in_fp64_give_what_one_process_gives(pair: JobRanks) -> None:
    ours = pair.run(train, "smddp", (0, 0), torch.float64)
    assert gap(ours[0], alone(torch.float64)) <= 1e-12


def test_weights_that_differ_are_rank_0s_as_always(pair: JobRanks) -> None:
    ours = pair.run(train, "smddp", (0, 7), torch.float32)
    assert gap(ours[0], ours[1]) == 0
    assert gap(ours[0], alone(torch.float32)) <= 1e-6


def describe_parameters(change: str) -> str:
    rank = join()
    net = model()
    if rank == 1 and change == "shape":
        net[3] = nn.Linear(64, 65)
    if rank == 1 and change == "type":
        net[3].double()
    if rank == 1 and change == "number":
        net.append(nn.Linear(3, 3))
    if rank == 1 and change == "frozen":
        net[3].weight.requires_grad_(False)
    with pytest.raises(ParallelError) as refused:
        DistributedDataParallel(net)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("shape", "3.weight: 65x64 float32"),
        ("type", "3.weight: 64x64 float64"),
        ("number", "6.weight: 3x3 float32"),
        ("frozen", "3.weight: 64x64 float32, not trained"),
    ],
)
def test_models_that_differ_are_named_on_every_rank(pair: JobRanks, change: str, named: str) -> None:
    for message in pair.run(describe_parameters, change):
        assert "the model's parameters" in message
        assert named in message


def buckets_of(settings: dict[str, Any]) -> tuple[list[int], int]:
    join()
    net = DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]), **settings)
    for _ in range(2):
        net(torch.randn(4, 512)).sum().backward()
    before = session.current().stats().buffers
    net(torch.randn(4, 512)).sum().backward()
    return net.bucket_bytes_cap_list, session.current().stats().buffers - before


@pytest.mark.skipif(
    "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters,
    reason="the oldest torch takes one size for all buckets",
)
def test_buckets_are_cut_for_the_links_unless_their_size_is_given(pair: JobRanks) -> None:
    for planned, sums in pair.run(buckets_of, {}):
        assert sums == len(planned) > 1
        assert sum(planned) == 8 * (512 * 512 + 512) * 4
    assert pair.run(buckets_of, {"bucket_cap_mb": 100}) == [([], 1)] * 2


def compiled() -> bool:
    join()
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    rows = torch.ones(4, 8)
    expected = net(rows)
    net = torch.compile(net, backend="eager")
    # Torch rebuilds its buckets in the second forward after a backward.
    for _ in range(3):
        result = net(rows)
        result.sum().backward()
    return torch.equal(result, expected)


def test_a_model_with_small_buckets_compiles(pair: JobRanks) -> None:
    assert pair.run(compiled) == [True, True]


def joined(settings: dict[str, bool]) -> list[float]:
    """Train three batches on rank 0 and one on rank 1; return the weight."""
    divided = settings.pop("divide_by_initial_world_size")
    rank = join()
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    net = DistributedDataParallel(net, **settings)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with net.join(divide_by_initial_world_size=divided):
        for _ in range(1 if rank else 3):
            optimizer.zero_grad()
            net(torch.full((1, 1), 2.0 * (rank + 1))).sum().backward()
            optimizer.step()
    return [float(parameter) for parameter in net.parameters()]


@pytest.mark.parametrize(("divided", "weight"), [(True, -5.0), (False, -7.0)])
@pytest.mark.parametrize("unused", [False, True])
def test_a_rank_without_batches_joins_the_sums_of_the_others(
    pair: JobRanks, divided: bool, weight: float, unused: bool
) -> None:
    """Regression: torch keeps half of the work that counts ranks, and waited for it forever."""
    settings = {"divide_by_initial_world_size": divided, "find_unused_parameters": unused}
    assert pair.run(joined, settings) == [[weight]] * 2


def trained_otherwise(**settings: bool) -> None:
    join()
    net = DistributedDataParallel(nn.Sequential(nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)), **settings)
    net(torch.ones(1, 1)).sum().backward()
    net.module[1].bias.requires_grad_(False)
    if settings:
        net(torch.ones(1, 1)).sum().backward()
    else:
        with pytest.raises(
            ParallelError, match=r"requires_grad of 1\.bias has become False since .* Wrap the model again"
        ):
            net(torch.ones(1, 1))
    net.requires_grad_(True)
    with pytest.raises(ParallelError, match=r"requires_grad of 0\.weight has become True"):
        net(torch.ones(1, 1))


def test_a_model_that_trains_other_parameters_is_refused(pair: JobRanks) -> None:
    pair.run(trained_otherwise)
    pair.run(partial(trained_otherwise, find_unused_parameters=True))


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 4, sparse=True)
        self.out = nn.Linear(4, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(words)).sum()


def train_sparse(backend: str) -> list[torch.Tensor]:
    rank = join(backend)
    net = DistributedDataParallel(Lookup())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        net(torch.tensor([rank, step, 5])).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def test_sparse_gradients_stay_sparse_and_are_summed_by_gloo(pair: JobRanks) -> None:
    ours, gloos = pair.run(train_sparse, "smddp"), pair.run(train_sparse, "gloo")
    assert gap(ours[0], ours[1]) == 0
    assert gap(ours[0], gloos[0]) <= 1e-7


def train_without_sync() -> tuple[int, float]:
    rank = join()
    net = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    before = session.current().stats().buffers
    with net.no_sync():
        net(torch.full((1, 1), float(rank))).sum().backward()
    between = session.current().stats().buffers - before
    net(torch.full((1, 1), 1.0)).sum().backward()
    return between, net.module.weight.grad.item()


def test_no_sync_sends_nothing_and_adds_up(pair: JobRanks) -> None:
    assert pair.run(train_without_sync) == [(0, 1.5)] * 2


def train_uneven() -> float:
    """Give rank 1 one batch more than rank 0; its last sums run in rank 0's `join`."""
    rank = join()
    net = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with torch.no_grad():
        net.module.weight.zero_()
    with net.join():
        for _ in range(2 + rank):
            optimizer.zero_grad()
            net(torch.full((1, 1), 1.0 + rank)).sum().backward()
            optimizer.step()
    return net.module.weight.item()


def test_join_goes_on_for_the_ranks_that_have_batches(pair: JobRanks) -> None:
    # Two steps by the mean of 1 and 2, and one by half of rank 1's 2, as join divides by the number of all ranks.
    assert pair.run(train_uneven) == [-4.0, -4.0]


def train_with_hook() -> float:
    rank = join()
    net = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    net(torch.full((1, 1), 1.0 + rank)).sum().backward()
    return net.module.weight.grad.item()


def test_communication_hooks_of_torchs_own_work(pair: JobRanks) -> None:
    assert pair.run(train_with_hook) == [1.5, 1.5]


def forget_the_work() -> bool:
    join()
    dist.all_reduce(torch.ones(1_000_000), async_op=True)
    gc.collect()
    rest = [torch.zeros(1_000_000) for _ in range(8)]
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    return all(not tensor.any() for tensor in rest)


def test_a_sum_that_nobody_waits_for_keeps_its_memory(pair: JobRanks) -> None:
    assert pair.run(forget_the_work) == [True, True]
