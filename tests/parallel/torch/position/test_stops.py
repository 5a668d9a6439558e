"""A loop with `Training` whose job is asked to go ends between two steps, with all that belongs to the step before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from herringbone_contract.checkpoint.verification import newest_tag
from herringbone_contract.events import stop_file, stops
from herringbone_parallel.torch.position.training import Training

EPOCHS, BATCHES = 2, 4


def train(folder: Path, *, saves: bool) -> list[Any]:
    """Train with a schedule of each batch and one of each epoch; return the losses and rates of its steps."""
    torch.manual_seed(1)
    inputs = torch.rand(16, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    batchwise = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    epochwise = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1], 0.5)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16 // BATCHES, shuffle=True)
    parts = {"batchwise": batchwise, "epochwise": epochwise}
    training = Training(folder=folder, model=net, optimizer=optimizer, loader=loader, **parts)
    training.resume()
    seen = []
    for _ in range(training.epoch, EPOCHS):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = (net(batch) - targets).square().mean()
            loss.backward()
            optimizer.step()
            if saves:
                training.save()
            batchwise.step()
            # An evaluation that draws.
            torch.rand(3)
            seen.append((training.step, loss.item(), batchwise.get_last_lr()))
            Seen.lines = seen
        epochwise.step()
    return seen


class Seen:
    lines: list[Any] = []  # noqa: RUF012


def asked(monkeypatch: pytest.MonkeyPatch, path: Path, call: int) -> None:
    """Be a rank that is asked to go at a call."""
    stop_file.make(str(path), ranks=1)
    descriptor = os.open(path, os.O_RDWR)
    stop_file.write(descriptor, call)
    os.close(descriptor)
    monkeypatch.setattr(stops, "_asking", stops.Asking(str(path), 0))


# After the last step of an epoch, the second process begins with the epoch's schedule.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("call", range(1, EPOCHS * BATCHES + 1))
def test_wherever_it_is_stopped_it_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, call):
    monkeypatch.setattr(stops, "_asking", stops.Asking(None, 0))
    whole = train(tmp_path / "whole", saves=False)
    asked(monkeypatch, tmp_path / "stop", call)
    with pytest.raises(SystemExit) as end:
        train(tmp_path / "cut", saves=False)
    assert (end.value.code, newest_tag(tmp_path / "cut"), len(Seen.lines)) == (0, f"step-{call}", call)
    before = Seen.lines
    monkeypatch.setattr(stops, "_asking", stops.Asking(None, 0))
    assert before + train(tmp_path / "cut", saves=False) == whole


def test_a_step_that_the_loop_has_saved_is_not_saved_again(tmp_path, monkeypatch):
    asked(monkeypatch, tmp_path / "stop", 3)
    saved: list[int] = []
    save = Training.save
    monkeypatch.setattr(Training, "save", lambda self: (saved.append(self.step), save(self)))
    with pytest.raises(SystemExit):
        train(tmp_path / "cut", saves=True)
    assert saved == [1, 2, 3]
