"""Saves into a holder's memory, and a resume from the newest one that is whole."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from herringbone_contract.constants import HostVariable
from herringbone_contract.files import write_all
from herringbone_contract.memory import link
from herringbone_parallel.torch.checkpoint import api, memory
from herringbone_parallel.torch.position.api import Training

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sealed memfds are Linux's")


@pytest.fixture
def holder(tmp_path, monkeypatch):
    config = {"host": "algo-1", "path": f"{tmp_path}/rank", "key": "k", "limit": 1 << 24, "idle": 60}
    with subprocess.Popen(
        [sys.executable, "-m", "herringbone_entry.holder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        monkeypatch.setenv(HostVariable.HOLDER, config["path"])
        monkeypatch.setenv(HostVariable.MEMORY_STEPS, "2")
        yield config["path"]
        process.stdin.close()


def train(folder, steps, *, saves=()):
    """Train up to a step, from where it goes on; return the step that it resumed from, and the weights."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
    training.resume()
    begin = training.step
    for inputs, wanted in loader:
        optimizer.zero_grad()
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()
        # A save that still runs would have the next one left out.
        api.finalize()
        if training.step in saves:
            training.save()
        if training.step == steps:
            break
    return begin, [value.detach().clone() for value in model.parameters()]


def steps_in_memory(path):
    return sorted({step for _, step, _ in memory.listed(path)})


def put(path, save, step, name, content):
    descriptor = link.new_file(name)
    write_all(descriptor, content)
    link.close_file(descriptor)
    link.ask(path, {"do": "put", "save": save, "step": step, "name": name}, descriptor)
    os.close(descriptor)


def content(path, save, name):
    descriptor = link.ask(path, {"do": "get", "save": save, "name": name, "hosts": []})[1]
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:
        os.close(descriptor)
        return file.read()


def test_a_loop_goes_on_from_memory_with_equal_bits(holder, tmp_path, capsys):
    _, whole = train(tmp_path / "whole", 14)
    link.forget(holder)
    train(tmp_path / "cut", 9, saves=[3])
    assert steps_in_memory(holder) == [5, 7]
    begin, weights = train(tmp_path / "cut", 14)
    assert begin == 7
    assert "resumes with step 7 from memory, each host's part from its own memory; the disk has step 3" in (
        capsys.readouterr().err
    )
    assert all(map(torch.equal, weights, whole))


def test_the_disk_wins_at_the_same_step(holder, tmp_path, capsys):
    train(tmp_path, 8, saves=[7])
    assert steps_in_memory(holder) == [5, 7]
    begin, _ = train(tmp_path, 9)
    assert begin == 7
    assert "resumes with step 7 from disk: memory has step 7" in capsys.readouterr().err
    # What the disk has replaced is forgotten: a step that comes again must not be older than one of before.
    assert steps_in_memory(holder) == []


def test_a_save_with_other_content_or_without_a_part_is_passed_over_and_an_earlier_one_taken(holder, tmp_path, capsys):
    train(tmp_path, 8)
    [good] = {save for save, step, _ in memory.listed(holder) if step == 7}
    part = content(holder, good, "rank-00000.safetensors")
    # As long as the right file, with one other byte in a value.
    put(holder, "f" * 16, 9, "rank-00000.safetensors", part[:-1] + bytes([part[-1] ^ 1]))
    put(holder, "f" * 16, 9, "manifest.json", content(holder, good, "manifest.json"))
    begin, _ = train(tmp_path, 9)
    error = capsys.readouterr().err
    assert begin == 7
    assert "resumes with step 7 from memory" in error
    assert "passed over: <memory of step 9>/rank-00000.safetensors is damaged: the checksum differs of" in error
    link.forget(holder)
    put(holder, "e" * 16, 8, "manifest.json", b"{}")
    # With nothing else, on disk or in memory, the loop begins at its begin, and not with an error for ever.
    assert train(tmp_path, 2)[0] == 0


def test_a_holder_that_is_gone_costs_a_line_and_not_the_training(holder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(HostVariable.HOLDER, f"{tmp_path}/nobody")
    assert train(tmp_path, 9)[0] == 0
    assert "this step is not kept in memory: the holder of checkpoints in memory does not answer" in (
        capsys.readouterr().err
    )
