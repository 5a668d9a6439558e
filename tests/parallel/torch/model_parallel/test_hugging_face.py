"""What Hugging Face's Trainer needs, without transformers; tests/e2e/test_hugging_face_equality.py has jobs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import herringbone_parallel.torch.model_parallel.api as smp
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import local_parts
from herringbone_parallel.torch.model_parallel.checkpoint.pretrained import safetensors_of
from herringbone_parallel.torch.model_parallel.hugging_face import trainer
from tests.parallel.torch.ranks import Ranks


@pytest.mark.parametrize(
    ("rows", "microbatches", "last"),
    [
        (8, 2, [4, 5, 6, 7]),
        (7, 2, [4, 5, 6, 0]),
        (5, 4, [4, 0, 1, 2]),
        # Fewer rows than one batch.
        (1, 4, [0, 0, 0, 0]),
    ],
)
def test_the_last_batch_is_filled_up_to_the_microbatches(rows: int, microbatches: int, last: list[int]) -> None:
    loader = DataLoader(TensorDataset(torch.arange(rows)), batch_size=4)
    trainer.fill_last_batch(loader, microbatches)
    assert [batch[0].tolist() for batch in loader][-1] == last


@pytest.mark.parametrize("settings", [{"batch_size": 4, "drop_last": True}, {"batch_size": 3}, {"batch_size": None}])
def test_other_loaders_stay_as_they_are(settings: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(torch.arange(7)), **settings)
    sampler = loader.batch_sampler
    trainer.fill_last_batch(loader, 2)
    assert loader.batch_sampler is sampler


def test_a_script_without_the_library_keeps_its_trainer() -> None:
    module = SimpleNamespace(__name__="transformers.trainer", is_sagemaker_mp_enabled=lambda: False)
    trainer.serve(module)
    assert vars(module).keys() == {"__name__", "is_sagemaker_mp_enabled"}


class Trainer:
    def compute_loss(self) -> None: ...


class OwnLoss(Trainer):
    def compute_loss(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        (Trainer, {"label_smoother": object()}, "label_smoothing_factor"),
        (Trainer, {"compute_loss_func": print}, "compute_loss_func"),
        (OwnLoss, {}, "a compute_loss of your own"),
    ],
)
def test_a_loss_that_the_trainer_would_ignore_is_refused(
    kind: type[Trainer], settings: dict[str, Any], name: str
) -> None:
    trainer.require_loss_of_model(Trainer(), Trainer)
    instance = kind()
    vars(instance).update(settings)
    with pytest.raises(ParallelError, match=f"^{name}: .*train under torch_distributed"):
        trainer.require_loss_of_model(instance, Trainer)


def settings_and_files(folder: str) -> Any:
    cfg = smp.state.cfg
    with pytest.raises(AttributeError, match="pipeline_parallel_degree"):
        _ = cfg.partition
    shown = [cfg.partitions, cfg.pipeline_parallel_degree, cfg.fp16, cfg.prescaled_batch, cfg.shard_optimizer_state]
    model = smp.DistributedModel(nn.Linear(2, 2), backward_passes_per_step=1)
    assert isinstance(model, smp.model.DistributedModel)
    assert smp.state.model is model
    smp.save({"rank": smp.mp_rank()}, f"{folder}/state.pt", v3=True)
    smp.barrier()
    one = torch.full((1, 1 + smp.rank()), float(smp.rank()))
    padded = trainer._pad(one, 1, -100, first=False)
    return shown, smp.load(f"{folder}/state.pt", back_compat=True), trainer._gather(padded).tolist()


def test_replicas_gather_what_the_trainer_compares(ranks: Ranks, tmp_path: Path) -> None:
    parameters = {"partitions": 1, "microbatches": 1, "ddp": True, "replicas": 2}
    for shown, loaded, gathered in ranks.run(settings_and_files, parameters, str(tmp_path)):
        assert shown == [1, 1, False, False, False]
        assert loaded == {"rank": 0}
        assert gathered == [[0.0, -100.0], [1.0, 1.0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.pt_0"]


def clip_what_is_too_small_to_shard() -> tuple[float, list[float]]:
    torch.manual_seed(1)
    model = smp.DistributedModel(nn.Linear(2, 2))

    @smp.step
    def train(inputs: torch.Tensor) -> None:
        model.backward(model(inputs).sum())

    train(torch.ones(2, 2))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return float(norm), [float(parameter.grad.norm()) for parameter in model.parameters()]


def test_torch_clips_gradients_of_parameters_that_are_too_small_to_shard(ranks: Ranks) -> None:
    """accelerate clips by torch's function. It was refused where no parameter was above the threshold."""
    # The gradient of each weight is 2, the sum over two rows, and so is that of the bias.
    norm = 6**0.5 * 2
    parameters = {"partitions": 1, "ddp": True, "sharded_data_parallel_degree": 2, "replicas": 2}
    for found, clipped in ranks.run(clip_what_is_too_small_to_shard, parameters):
        assert found == pytest.approx(norm)
        assert clipped == pytest.approx([0.5 * 4 / norm, 0.5 * 8**0.5 / norm])


def test_tied_weights_are_found_under_either_name() -> None:
    module = nn.ModuleDict({"first": nn.Linear(2, 2, bias=False), "second": nn.Linear(2, 2, bias=False)})
    module["second"].weight = module["first"].weight
    weights = {"second.weight": torch.ones(2, 2)}
    local_parts.tie(weights, module)
    assert weights["first.weight"] is weights["second.weight"]


def test_only_a_missing_file_of_the_trainers_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert safetensors_of(tmp_path / "pytorch_model.bin") == tmp_path / "model.safetensors"
    assert safetensors_of(tmp_path / "step1") is None
    (tmp_path / "pytorch_model.bin").touch()
    assert safetensors_of(tmp_path / "pytorch_model.bin") is None


def test_state_before_init_says_what_to_do() -> None:
    assert not smp.state.initialized
    with pytest.raises(ParallelError, match=r"call it first"):
        _ = smp.state.cfg.fp16


def accumulate_at_the_end_of_an_epoch() -> list[Any]:
    class Served:
        args = SimpleNamespace(gradient_accumulation_steps=4, should_save=True)
        model_wrapped = None
        label_smoother = compute_loss_func = None

        def compute_loss(self) -> None: ...
        def training_step(self) -> None: ...
        def prediction_step(self) -> None: ...
        def _save(self) -> None: ...

    trainer._serve_trainer(Served)
    torch.manual_seed(1)
    model = Served()._wrap_model(nn.Linear(2, 1))  # type: ignore[attr-defined]

    @smp.step
    def train(inputs: torch.Tensor) -> None:
        model.backward(model(inputs).sum())

    # The Trainer updates after the last batch of an epoch, also if fewer batches than four came before it.
    for _ in range(2):
        train(torch.full((1, 2), 1.0 + smp.rank()))
    return [parameter.grad.flatten().tolist() for parameter in model.parameters()]


def test_replicas_average_gradients_although_an_epoch_ends_within_an_accumulation(ranks: Ranks) -> None:
    """They had averaged every fourth batch only, and so went apart without an error."""
    parameters = {"partitions": 1, "ddp": True, "replicas": 2}
    for gradients in ranks.run(accumulate_at_the_end_of_an_epoch, parameters):
        assert gradients == [[3.0, 3.0], [2.0]]
