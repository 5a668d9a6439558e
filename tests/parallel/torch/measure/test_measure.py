"""Measurements of training loops: exact where they can be, and near a real run's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from herringbone_contract.errors import ParallelError  # noqa: E402
from herringbone_parallel.core.prediction.measurement import Kind, Phase, parse, to_text  # noqa: E402
from tests.parallel.torch.measure.scripts import (  # noqa: E402
    Words,
    bytes_by_kind,
    measured,
    peak_of,
    real_peak_of,
    train_convolutions,
    train_recurrent,
    train_words,
)


def test_parameters_gradients_and_states_are_exact() -> None:
    measurement = measured(train_words)
    model = Words()
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    held = bytes_by_kind(measurement)
    assert held[Kind.PARAMETER] == size
    assert sum(parameter.bytes for parameter in measurement.parameters) == size
    # The gradients of the last step, and those of this one.
    assert held[Kind.GRADIENT] == 2 * size
    steps = 4 * len(list(model.parameters()))
    assert held[Kind.STATE] == 2 * size + steps
    assert sum(parameter.state_bytes for parameter in measurement.parameters) == 2 * size + steps
    assert [parameter.name for parameter in measurement.parameters] == [name for name, _ in model.named_parameters()]
    assert [module.path for module in measurement.modules] == [name for name, _ in model.named_modules()]
    assert measurement.batch == 8
    assert parse(to_text(measurement)) == measurement


def test_calls_belong_to_modules_and_phases() -> None:
    measurement = measured(train_words)
    work: Counter[tuple[str, Phase]] = Counter()
    for call in measurement.calls:
        work[measurement.modules[call.module].path, call.phase] += measurement.operations[call.operation].operations
    head = 2 * 8 * 64 * 64 * 1000
    assert work["head", Phase.FORWARD] == head
    assert work["head", Phase.BACKWARD] == 2 * head
    assert work["layers.0.linear1", Phase.BACKWARD] == work["layers.1.linear1", Phase.BACKWARD] > 0
    phases = {call.phase for call in measurement.calls}
    assert phases == {Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.BETWEEN, Phase.OPTIMIZER}
    updated = {call.module for call in measurement.calls if call.phase is Phase.OPTIMIZER}
    owners = {parameter.module for parameter in measurement.parameters}
    assert updated == owners
    blocks = [module.path for module in measurement.modules if module.unit]
    assert blocks == ["layers.0", "layers.1"]
    # Their inputs need gradients, because the embedding is trained.
    assert not any(module.late for module in measurement.modules)
    splits = {module.path: module.split for module in measurement.modules if module.split}
    assert (splits["layers.0.linear1"], splits["layers.0.linear2"]) == ("column", "row")


def test_units_that_get_no_gradient_to_pass_on_are_late() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    assert [module.path for module in measured(train).modules if module.late] == ["0"]


@pytest.mark.parametrize("train", [train_convolutions, train_words, train_recurrent])
def test_peak_is_that_of_a_real_run(train: Callable[[], None]) -> None:
    predicted, real = peak_of(measured(train)), real_peak_of(train)
    assert predicted == pytest.approx(real, rel=0.01)


def test_ranks_loaders_accumulation_and_values() -> None:
    seen: dict[str, Any] = {}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 8)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.second(checkpoint(self.first, inputs, use_reentrant=False))

    def loop() -> None:
        dist.init_process_group("nccl")
        seen["ranks"] = dist.get_world_size()
        model = DistributedDataParallel(Model())
        data = TensorDataset(torch.randn(512, 64), torch.arange(512) % 8)
        loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), num_workers=3)
        seen["batches"] = len(loader)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (inputs, labels) in enumerate(loader):
            loss = functional.cross_entropy(model(inputs), labels)
            if not torch.isfinite(loss) or torch.isnan(model(inputs)).any():
                raise FloatingPointError
            seen["labels"] = labels.tolist()
            (loss / 2).backward()
            if number % 2:
                objects = [None] * dist.get_world_size()
                dist.all_gather_object(objects, loss.item())
                dist.all_reduce(loss.detach())
                optimizer.step()
                optimizer.zero_grad()

    measurement = measured(loop, ranks=4)
    assert (seen["ranks"], seen["batches"]) == (4, 4)
    # True values: the loader reads the script's data.
    assert sorted(set(seen["labels"])) == list(range(8))
    assert (measurement.wrapper, measurement.microbatches, measurement.batch) == ("DistributedDataParallel", 2, 64)
    assert (measurement.data_workers, measurement.epoch_samples) == (3, 512)
    assert measurement.data_seconds > 0
    assert [module.path for module in measurement.modules] == ["", "first", "second"]
    recomputed = {measurement.modules[call.module].path for call in measurement.calls if call.phase is Phase.RECOMPUTE}
    assert recomputed == {"first"}
    assert {call.microbatch for call in measurement.calls} == {0, 1}
    assert not dist.is_initialized()


def test_loop_of_one_step_is_measured_in_that_step() -> None:
    measurement = measured(lambda: train_words(steps=1))
    assert any("one step only" in note for note in measurement.notes)
    assert {tensor.born >= 0 for tensor in measurement.tensors if tensor.kind is Kind.STATE} == {True}


def test_sizes_that_depend_on_values_are_computed() -> None:
    def loop() -> None:
        model = nn.Linear(32, 32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            mask = torch.arange(4000).view(1000, 4) % 3 == 0
            assert mask.nonzero().shape[0] == 1334
            scores = model(torch.randn(2000, 32))
            kept = scores[scores > 0]
            (kept.sum() + scores.mean()).backward()
            optimizer.step()

    measurement = measured(loop)
    assert any("aten.index" in note or "aten.nonzero" in note for note in measurement.notes)
    assert any(operation.fallback for operation in measurement.operations)


def test_a_mask_that_is_true_at_unknown_places_selects_all() -> None:
    # A detector marks the boxes that it keeps. Nothing would come after it if none of them counted.
    sizes: list[int] = []

    def loop() -> None:
        model = nn.Linear(32, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            scores = model(torch.randn(20_000, 32)).flatten()
            keep = torch.zeros_like(scores, dtype=torch.bool)
            keep[scores.topk(5_000).indices] = True
            kept = scores[torch.where(keep)[0]]
            sizes.append(len(kept))
            kept.sum().backward()
            optimizer.step()

    measured(loop)
    assert sizes == [20_000, 20_000]


def test_an_operation_of_the_user_runs_once_and_is_named() -> None:
    sizes: list[torch.Size] = []

    @torch.library.custom_op("plan_tests::doubled", mutates_args=())
    def doubled(values: torch.Tensor) -> torch.Tensor:
        sizes.append(values.shape)
        return 2 * values

    doubled.register_autograd(lambda _, gradient: 2 * gradient)

    def loop() -> None:
        model = nn.Linear(256, 256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            doubled(model(torch.randn(64, 256))).sum().backward()
            optimizer.step()

    measurement = measured(loop)
    # Without a fake form the first call tells the shape of the second one's result.
    assert sizes == [(64, 256)]
    assert any("plan_tests.doubled" in note and "ran for real, 1 time" in note for note in measurement.notes)
    assert any("doubled" in operation.name and operation.fallback for operation in measurement.operations)


def test_loops_and_checks_on_values_end() -> None:
    def loop() -> None:
        model = nn.Linear(256, 256)
        # Draws again until no value is outside of the bounds.
        nn.init.trunc_normal_(model.weight, std=0.02)
        while (model.weight.detach().abs() > 100).any():
            nn.init.normal_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            result = model(torch.randn(64, 256))
            assert not torch.isnan(result).any()
            assert torch.isfinite(result).all()
            result.sum().backward()
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
            optimizer.step()

    assert measured(loop).batch == 64


def test_script_without_a_step() -> None:
    def loop() -> None:
        nn.Linear(4, 4)(torch.zeros(2, 4)).sum().backward()

    with pytest.raises(ParallelError, match=r"before a step of an optimizer returned: phase backward, .* 1 forwards"):
        measured(loop)


def test_errors_of_the_script_are_torchs_own(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        measured(lambda: nn.Linear(400, 400)(torch.zeros(200, 300)))
    with pytest.raises(FileNotFoundError):
        measured(lambda: torch.load(tmp_path / "missing.pt"))


def test_gpus_are_there_without_one() -> None:
    seen: dict[str, Any] = {}

    def loop() -> None:
        assert torch.cuda.is_available()
        device = torch.device("cuda")
        model = Words().to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        data = TensorDataset(torch.randint(0, 1000, (64, 32)))
        for (tokens,) in DataLoader(data, batch_size=16, pin_memory=True):
            moved = tokens.to(device, non_blocking=True)
            with torch.autocast("cuda"):
                scores = model(moved)
                loss = functional.cross_entropy(scores.flatten(0, 1), moved.flatten())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch.cuda.synchronize()
            seen.update(scores=scores.device.type, loss=loss.cpu().device.type, dtype=scores.dtype)

    measurement = measured(loop, device="cuda")
    assert seen == {"scores": "cuda", "loss": "cpu", "dtype": torch.float16}
    size = sum(parameter.bytes for parameter in measurement.parameters)
    held = bytes_by_kind(measurement)
    assert held[Kind.PARAMETER] == size
    # The data set stays in the host's memory.
    assert held[Kind.INPUT] < 64 * 32 * 8
    work = {measurement.operations[call.operation].name for call in measurement.calls}
    # GPUs update all parameters in few calls.
    assert any("_foreach_" in name for name in work)
    normed = [one for one in measurement.operations if one.name == "aten.native_layer_norm.default"]
    assert {one.dtype for one in normed} == {"float32"}


def test_script_that_leaves_its_model_on_the_host() -> None:
    with pytest.raises(ParallelError, match="the job has GPUs, and the script trains on none of them"):
        measured(train_words, device="cuda")
