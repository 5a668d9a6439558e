"""examples/common: a training that ends in the middle of an epoch continues there, with the same losses."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

Load = Callable[[str, str], ModuleType]


class Small:
    """A training of four steps an epoch, with dropout, running statistics and a schedule."""

    epochs = 3

    def __init__(self, module: Load, settings: argparse.Namespace, world: Any) -> None:
        updates = module("common", "common.for_torch.updates")
        self.order = module("common", "common.order").Order(17, global_batch=4, rank_batch=2, ranks=1, seed=1)
        torch.manual_seed(1)
        self._examples = torch.randn(17, 3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))
        optimizer = updates.build_optimizer(settings, self.model)
        self._updates = updates.Updates(settings, world, self.model, optimizer, self.order)
        self.parts = self._updates.parts

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        self.model.train()
        for step in self.order.epoch(number, rank=0)[first:]:
            yield self._updates.step(step, lambda part: self.model(self._examples[part]).square().mean())

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        return {"eval_loss": float(self.model(self._examples).square().mean())}


@pytest.fixture
def trained(
    module: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that runs the common loop in this process, and returns its lines of steps and evaluations."""
    loop, study = module("common", "common.loop"), module("common", "common.study")
    checkpoints = module("common", "common.for_torch.checkpoints").Checkpoints
    parser = argparse.ArgumentParser()
    module("common", "common.settings").add_settings(parser, optimizers=("adamw",))

    class Framework:
        join, save, leave = (staticmethod(lambda *_, world=study.ONE_PROCESS: world) for _ in range(3))

    for name in ("TRAINING", "TEST"):
        monkeypatch.setenv(f"SM_CHANNEL_{name}", str(tmp_path))
    monkeypatch.setenv("SM_MODEL_DIR", str(tmp_path))

    def run(folder: str, *words: str, saves: bool = True) -> list[str]:
        monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / folder))
        settings = parser.parse_args(["--epochs=3", "--global-batch=4", "--rank-batch=2", *words])
        loop.run(settings, lambda world, *_: Small(module, settings, world), Framework, checkpoints if saves else None)
        lines = capsys.readouterr().out.splitlines()
        return [line.partition(', "time_ms"')[0] for line in lines if line.startswith("step=")] + [
            line.partition('"value": ')[2] for line in lines if '"eval_loss"' in line
        ]

    return run


# The checkpoint is of the last step that `--save-every` divides: in an epoch, and at the end of one.
@pytest.mark.parametrize(("every", "stop", "saved", "evaluations"), [(3, 7, 6, 2), (4, 5, 4, 3), (5, 12, 10, 1)])
def test_a_training_continues_with_the_same_losses(
    trained: Callable[..., list[str]], every: int, stop: int, saved: int, evaluations: int
) -> None:
    whole = trained("whole", "--save-every=100", saves=True)
    assert len(whole) == 12 + 3
    assert trained("parts", f"--save-every={every}", f"--steps={stop}")[:stop] == whole[:stop]
    assert trained("parts", f"--save-every={every}") == [*whole[saved:12], *whole[15 - evaluations :]]


def test_no_step_is_made_after_the_last_one(trained: Callable[..., list[str]]) -> None:
    trained("a", "--save-every=3", "--steps=6")
    for steps in (6, 5):
        [evaluation] = trained("a", "--save-every=3", f"--steps={steps}")
        assert not evaluation.startswith("step=")


def test_scripts_without_checkpoints_refuse_their_setting(trained: Callable[..., list[str]]) -> None:
    with pytest.raises(ValueError, match="--save-every 3 is for PyTorch's script"):
        trained("a", "--save-every=3", saves=False)
    assert len(trained("a", saves=False)) == 15
