"""The power fails at any write, sync or rename of a save: the next start goes on from one whole step or the other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from herringbone_parallel.torch.position.training import Training
from tests.power_cut import PowerCut

STEPS = 6


def make(folder: Path) -> tuple[Training, nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.rand(STEPS * 2, 2)), batch_size=2, shuffle=True)
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
    return training, model, optimizer, loader


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> list[Any]:
    """Make a step, and return what it depends on: its samples, its weights before, and the numbers that it draws."""
    before = [value.detach().clone().tolist() for value in model.parameters()]
    optimizer.zero_grad()
    loss = model(inputs).square().sum()
    loss.backward()
    optimizer.step()
    return [inputs.tolist(), before, loss.item(), random.random()]


@pytest.mark.parametrize("tag", [None, "last"])
def test_a_cut_at_any_moment_of_a_save_repeats_and_loses_no_sample(tmp_path: Path, tag: str | None) -> None:
    folder = tmp_path / "checkpoints"
    random.seed(1)
    training, model, optimizer, loader = make(folder)
    steps = []
    cut = PowerCut(folder)
    for (inputs,) in loader:
        steps.append(go_on(model, optimizer, inputs))
        if training.step == 2:
            training.save(tag)
        if training.step == 4:
            with cut:
                training.save(tag, in_background=True).result()
    during, after = set(), set()
    for left, over in cut.folders(tmp_path / "left", tries=4):
        training, model, optimizer, loader = make(left)
        assert training.resume()
        step = training.step
        assert [go_on(model, optimizer, inputs) for (inputs,) in loader] == steps[step:]
        (after if over else during).add(step)
    assert (during, after) == ({2, 4}, {4})
