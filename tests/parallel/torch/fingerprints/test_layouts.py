"""Restarts on the same and on other numbers of ranks: samples are equal as sets, weights within the error of sums."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from herringbone_contract.rehearsal.comparison import compare
from herringbone_contract.rehearsal.records import KIND, Run, Step, pieces, read
from herringbone_contract.rehearsal.verdict import Outcome, Reason
from herringbone_parallel.torch.fingerprints.recorder import Recorder
from tests.parallel.torch.processes import PROCESSES

BATCH = 8


def train(kind: str, rank: int, size: int, folder: Path, steps: int, forgets: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 1))
    if kind == "fsdp2":
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inputs = torch.randn(50, 6, generator=torch.Generator().manual_seed(9))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=4)
    begun = sorted(folder.glob("epoch-*"))
    if begun:
        weights, state = get_state_dict(model, optimizer)
        checkpoint.load(saved := {"weights": weights, "state": state}, checkpoint_id=begun[-1])
        restored = state if forgets else saved["state"]
        set_state_dict(model, optimizer, model_state_dict=saved["weights"], optim_state_dict=restored)
        if forgets:
            optimizer.state.clear()
    for epoch in range(len(begun), 2):
        sampler.set_epoch(epoch)
        for batch, targets in DataLoader(data, BATCH // size, sampler=sampler):
            if not steps:
                return
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch), targets).backward()
            optimizer.step()
            steps -= 1
        weights, state = get_state_dict(model, optimizer)
        checkpoint.save({"weights": weights, "state": state}, checkpoint_id=folder / f"epoch-{epoch}")
        dist.barrier()


def _rank(sender: Any, rank: int, size: int, store: Path, *args: Any) -> None:
    torch.set_num_threads(1)
    events: list[dict[str, Any]] = []

    def send(step: Step, place: int | None) -> None:
        events.extend({"kind": KIND, "t": time.time(), "rank": place, **piece} for piece in pieces(f"{store}", step))

    Recorder(send).watch()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    kind, *others = args
    train(kind, rank, size, *others)
    sender.send(events)
    dist.barrier()
    dist.destroy_process_group()


def run(kind: str, size: int, folder: Path, steps: int = 99, *, forgets: bool = False) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    receiver, sender = PROCESSES.Pipe(duplex=False)
    store = folder / f"store-{len(list(folder.iterdir()))}"
    args = (size, store, kind, folder, steps, forgets)
    ranks = [PROCESSES.Process(target=_rank, args=(sender, rank, *args)) for rank in range(size)]
    for process in ranks:
        process.start()
    events = [event for _ in ranks for event in receiver.recv()]
    for process in ranks:
        process.join()
    return events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a run on two ranks of each kind."""
    return {kind: read(run(kind, 2, tmp_path_factory.mktemp("run"))) for kind in ("ddp", "fsdp2")}


@pytest.mark.parametrize(("kind", "size"), [("ddp", 4), ("fsdp2", 1), ("fsdp2", 2)])
def test_a_restart_is_equal_on_any_number_of_ranks(
    tmp_path: Path, undisturbed: dict[str, Run], kind: str, size: int
) -> None:
    base = undisturbed[kind]
    disturbed = read([*run(kind, 2, tmp_path / "a", 9), *run(kind, size, tmp_path / "a")])
    verdict = compare([base], disturbed, layout="same" if size == 2 else "other")
    assert (verdict.outcome, verdict.findings, verdict.steps, verdict.redone) == (Outcome.EQUAL, (), 14, 2)
    assert not verdict.notes


def test_an_optimizer_that_is_not_restored_on_another_layout_is_named(
    tmp_path: Path, undisturbed: dict[str, Run]
) -> None:
    disturbed = read([*run("fsdp2", 2, tmp_path / "a", 9), *run("fsdp2", 1, tmp_path / "a", forgets=True)])
    first = compare([undisturbed["fsdp2"]], disturbed, layout="other").first
    assert first is not None
    assert (first.reason, first.step) == (Reason.OPTIMIZER, 8)
