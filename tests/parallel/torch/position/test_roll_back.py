"""A training that is rolled back begins behind the data of the fault: in this epoch or a later one."""

import gc
import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from herringbone_contract.events import emit
from herringbone_parallel.torch.position.api import Training


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setattr(emit, "pace", emit.pace)
    return tmp_path


def roll_back(folder, end, batches=1):
    (folder / ".roll-back.json").write_text(json.dumps({"end": end, "batches": batches}))


def train(*, epochs=2, accumulated=1, stop=0, save=()):
    """Return the samples of each step of a training of 5 batches an epoch, and the pace at each batch."""
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.arange(20.0)[:, None]), batch_size=4, shuffle=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    training = Training(model=model, optimizer=optimizer, loader=loader)
    training.resume()
    seen, paces = {}, []
    for epoch in range(training.epoch, epochs):
        for number, (batch,) in enumerate(loader, training.batch):
            paces.append(emit.pace())
            seen.setdefault((epoch, training.step), []).extend(batch.flatten().tolist())
            model(batch).sum().backward()
            if (number + 1) % accumulated == 0 or number == 4:
                optimizer.step()
                optimizer.zero_grad()
                if training.step in save:
                    training.save()
                if training.step == stop:
                    return seen, paces
    return seen, paces


@pytest.mark.parametrize("end", [3, 4, 5, 6, 8, 9])
@pytest.mark.parametrize("saved", [0, 2])
def test_none_of_the_data_before_the_end_is_used(folder, saved, end):
    whole, _ = train()
    if saved:
        train(stop=saved, save=[saved])
    roll_back(folder, end)
    # The order of an epoch that was not begun depends on numbers that were not drawn.
    first = {key: value for key, value in train()[0].items() if saved or key[0] == 0 or end <= 5}
    assert list(first) == [key for key in whole if key[1] >= end][: len(first)]
    assert all(value == whole[key] for key, value in first.items() if key[0] == 0)


def test_a_later_checkpoint_passes_over_nothing_twice(folder):
    train(stop=2, save=[2])
    roll_back(folder, 4)
    rest = train(stop=7, save=[6])[0]
    assert list(rest) == [(0, 4), (1, 5), (1, 6)]
    assert list(train()[0]) == [(1, 6), (1, 7), (1, 8), (1, 9)]


def test_a_step_of_several_batches_passes_over_all_of_them(folder):
    whole, paces = train(accumulated=2)
    # Log before the step or behind it: the step is the same, and the batches are known after the first one.
    assert paces[:6] == [(0, 1), (0, 2), (1, 2), (1, 2), (2, 2), (3, 1)]
    train(accumulated=2, stop=1, save=[1])
    roll_back(folder, 2, 2)
    rest = train(accumulated=2)[0]
    assert next(iter(rest)) == (0, 2)
    assert rest[0, 2] == whole[0, 2]


def test_nobody_can_pass_over_the_data_of_several_loaders(folder, capsys):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loaders = [DataLoader(TensorDataset(torch.rand(8, 1)), batch_size=4) for _ in range(2)]
    roll_back(folder, 1)
    training = Training(model=model, optimizer=optimizer, one=loaders[0], two=loaders[1])
    assert (training.resume(), training.step, emit.pace()) == (False, 0, None)


def test_a_training_that_is_gone_has_no_pace(folder):
    train(stop=1)
    gc.collect()
    assert emit.pace() is None
