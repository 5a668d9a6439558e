"""A training that is stopped in the middle of an epoch and goes on: on the same ranks, and on others."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from herringbone_contract.checkpoint.verification import read_manifest
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.states import decode, encode
from herringbone_parallel.torch.position.training import Training
from tests.parallel.torch.ranks import Ranks

SAMPLES = 37


def train(
    folder: str, stop: int, batch_size: int, dropout: float, epochs: int = 2, sharded: bool = False
) -> dict[str, Any]:
    """Train as a script does that knows nothing of ranks before it; a checkpoint every second step."""
    torch.manual_seed(1)
    values = torch.rand(SAMPLES, 4)
    dataset = TensorDataset(torch.arange(SAMPLES), values, values.sum(1, keepdim=True))
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 1))
    average = torch.optim.swa_utils.AveragedModel(net)
    if sharded:
        from herringbone_parallel.torch.sharding import api as tsm

        model = tsm.shard(net)
    else:
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    training = Training(
        folder=folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler, average=average
    )
    training.resume()
    seen = []
    for epoch in range(training.epoch, epochs):
        sampler.set_epoch(epoch)
        for indices, inputs, targets in loader:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            if not sharded:
                average.update_parameters(net)
            seen.append((epoch, indices.tolist(), loss.item()))
            if training.step % 2 == 0:
                save = training.save(in_background=True)
            if training.step == stop:
                # The test copies the folder.
                save.result()
                return {"seen": seen}
        scheduler.step()
    parameters = model.state_dict().values() if sharded else (*net.parameters(), *average.parameters())
    weights = [getattr(value, "full_tensor", lambda v=value: v)().flatten().tolist() for value in parameters]
    return {"seen": seen, "weights": weights, "rate": scheduler.get_last_lr(), "next": torch.rand(()).item()}


def _samples(results: list[dict[str, Any]], epoch: int) -> Counter[int]:
    return Counter(
        index for rank in results for number, indices, _ in rank["seen"] if number == epoch for index in indices
    )


def test_equal_in_bits_on_the_same_ranks(ranks: Ranks, tmp_path: Path) -> None:
    whole = ranks.shard(train, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "a"), 0, 4, 0.3)
    before = ranks.shard(train, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 8, 4, 0.3)
    after = ranks.shard(train, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 0, 4, 0.3)
    for rank in range(2):
        assert before[rank]["seen"] + after[rank].pop("seen") == whole[rank].pop("seen")
        assert after[rank] == whole[rank]


@pytest.mark.parametrize(("size", "batch_size"), [(1, 8), (4, 2)])
def test_each_sample_once_on_other_ranks(ranks: Ranks, tmp_path: Path, size: int, batch_size: int) -> None:
    whole = ranks.shard(train, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "a"), 0, 4, 0.0)
    before = ranks.shard(train, 2, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 8, 4, 0.0)
    after = ranks.shard(train, size, {"hybrid_shard_degree": 1}, str(tmp_path / "b"), 0, batch_size, 0.0)
    for epoch in range(2):
        samples = _samples([*before, *after], epoch)
        assert set(samples) == set(range(SAMPLES))
        assert samples.total() - SAMPLES < max(size, 2)
    # The rounds of an epoch's end, which the ranks fill, differ.
    for mine, others in zip(after[0]["weights"], whole[0]["weights"], strict=True):
        assert mine == pytest.approx(others, abs=2e-3)


def test_shards_go_on_on_other_ranks(ranks: Ranks, tmp_path: Path) -> None:
    whole = ranks.shard(train, 2, {"hybrid_shard_degree": 2}, str(tmp_path / "a"), 0, 4, 0.0, 2, True)
    before = ranks.shard(train, 2, {"hybrid_shard_degree": 2}, str(tmp_path / "b"), 8, 4, 0.0, 2, True)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    again = ranks.shard(train, 2, {"hybrid_shard_degree": 2}, str(tmp_path / "b"), 0, 4, 0.0, 2, True)
    assert before[0]["seen"] + again[0]["seen"] == whole[0]["seen"]
    assert again[0]["weights"] == whole[0]["weights"]
    after = ranks.shard(train, 4, {"hybrid_shard_degree": 4}, str(tmp_path / "c"), 0, 2, 0.0, 2, True)
    assert all(set(_samples([*before, *after], epoch)) == set(range(SAMPLES)) for epoch in range(2))
    for mine, others in zip(after[0]["weights"], whole[0]["weights"], strict=True):
        assert mine == pytest.approx(others, abs=2e-3)


def test_a_step_that_a_scaler_passes_over_has_used_its_samples(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(6, 1)), batch_size=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    training = Training(folder=tmp_path, model=model, optimizer=optimizer, loader=loader, scaler=scaler)
    for (inputs,) in loader:
        scaler.scale(model(inputs).sum() * (float("inf") if training.step == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if training.step == 2:
            break
    assert training.step == 2
    training.save("two")
    assert Training(folder=tmp_path, model=model, optimizer=optimizer, loader=loader, scaler=scaler).resume("two")
    assert scaler.get_scale() == 2.0**9


class Average:
    """A part with a large tensor in its state."""

    def __init__(self) -> None:
        self.values = torch.ones(5000)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weight": self.values}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.values = state["weight"]


@pytest.mark.parametrize("tensor", ["model.weight", ".own.0", ".large.average.weight"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, tensor: str) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = {"model": model, "optimizer": optimizer, "average": Average()}
    training = Training(folder=tmp_path, **parts)
    for _ in range(2):
        optimizer.step()
        training.save()
    manifest = read_manifest(tmp_path / "step-2")
    (chunk,) = manifest.tensors[tensor].chunks
    content = bytearray((tmp_path / "step-2" / chunk.file).read_bytes())
    content[chunk.start] ^= 1
    (tmp_path / "step-2" / chunk.file).write_bytes(content)
    again = Training(folder=tmp_path, **parts)
    with pytest.warns(
        UserWarning, match=f"the checksum differs of '{tensor}'; the checkpoint 'step-1' is used instead"
    ):
        assert again.resume()
    assert again.step == 1
    with pytest.raises(ParallelError, match="is damaged"):
        again.resume("step-2")


def test_a_save_changes_nothing(tmp_path: Path) -> None:
    results = []
    for saves in (False, True):
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.rand(8, 2)), batch_size=2)
        training = Training(folder=tmp_path, model=model, optimizer=optimizer, loader=loader)
        for (inputs,) in loader:
            if saves:
                training.save(f"before-{training.step}")
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((training.step, [parameter.tolist() for parameter in model.parameters()]))
    assert results[0] == results[1]


def test_gradients_that_wait_at_the_end_of_an_epoch_are_named(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(5, 1)))
    training = Training(folder=tmp_path, model=model, optimizer=optimizer, loader=loader)
    for number, (inputs,) in enumerate(loader):
        model(inputs).sum().backward()
        if number % 2:
            optimizer.step()
    with pytest.raises(ParallelError, match="its last 1 batches wait for a step"):
        training.save()


def test_ranks_without_a_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParallelError, match="init_process_group"):
        Training(folder=tmp_path, model=nn.Linear(1, 1)).save()


def test_any_state_of_plain_values_comes_along(tmp_path: Path) -> None:
    class Own:
        def __init__(self, state: Any) -> None:
            self.state = state

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    state = {1: (2.0, float("inf")), "big": [torch.arange(5000.0)], "counted": Counter("aab"), "set": {1, 2}}
    training = Training(folder=tmp_path, own=Own(state))
    training.save()
    again = Own(None)
    assert Training(folder=tmp_path, own=again).resume()
    torch.testing.assert_close(again.state.pop("big"), state.pop("big"))
    assert again.state == state
    assert isinstance(again.state["counted"], Counter)
    with pytest.raises(ParallelError, match=r"'own\.x' is a object"):
        Training(folder=tmp_path, own=Own({"x": object()})).save()


def test_an_optimizer_of_version_1_needs_its_model() -> None:
    of_version_1 = type("Other", (nn.Linear,), {"__module__": "herringbone_parallel.torch.model_parallel.model"})
    with pytest.raises(ParallelError, match="has 0 smp"):
        Training(model=of_version_1(1, 1))


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ParallelError, match="'rate' is a float, which has no state_dict"):
        Training(rate=0.1)
    with pytest.raises(ParallelError, match="'optimizer' has parameters of no single model"):
        Training(model=nn.Linear(1, 1), optimizer=torch.optim.SGD(model.parameters()))
    with pytest.raises(ParallelError, match="'loader' has no optimizer beside it"):
        Training(model=model, loader=DataLoader(TensorDataset(torch.ones(5, 1))))
    Training(folder=tmp_path, model=model).save()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ParallelError, match="no part 'scheduler'"):
        Training(folder=tmp_path, model=model, scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer)).resume()
    assert not Training(folder=tmp_path / "none", model=model).resume()


def test_states_as_json() -> None:
    large: dict[str, torch.Tensor] = {}
    value = {"a": [torch.ones(2000)], 3: {"b": (1,)}}
    encoded = encode(value, "own", large)
    assert list(large) == ["own.a.0"]
    assert decode(encoded, large.__getitem__) == value
