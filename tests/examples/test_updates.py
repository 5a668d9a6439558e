"""examples/common: steps of a global batch do not depend on its parts; command lines override hyperparameters."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

Load = Callable[[str, str], ModuleType]


def trained(module: Load, optimizer: str, rank_batch: int) -> torch.Tensor:
    """Run two steps of 12 examples in one process without a launcher."""
    updates, order, study = (module("common", f"common.{name}") for name in ("for_torch.updates", "order", "study"))
    parser = argparse.ArgumentParser()
    names = ("sgd", "lars", "lamb", "adamw", "radam")
    module("common", "common.settings").add_settings(parser, optimizers=names)
    values = {"optimizer": optimizer, "global-batch": 12, "rank-batch": rank_batch, "epochs": 1, "clip": 0.5}
    settings = parser.parse_args(study.as_arguments({**values, "trust": 1}))
    torch.manual_seed(1)
    examples, model = torch.randn(24, 5), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    steps = order.Order(24, global_batch=12, rank_batch=rank_batch, ranks=1, seed=1)
    built = updates.build_optimizer(settings, model)
    stepper = updates.Updates(settings, study.ONE_PROCESS, model, built, steps)
    losses = [stepper.step(step, lambda part: model(examples[part]).square().mean()) for step in steps.epoch(0, rank=0)]
    # Linear decay to 0 over two steps: each step has the rate of its middle.
    assert built.param_groups[0]["lr"] == pytest.approx(0.05 / 4)
    return torch.cat([torch.tensor(losses), *(parameter.detach().flatten() for parameter in model.parameters())])


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb", "adamw", "radam"])
def test_parts_make_the_step_of_their_batch(module: Load, optimizer: str) -> None:
    whole = trained(module, optimizer, 12)
    for rank_batch in (1, 4):
        assert (trained(module, optimizer, rank_batch) - whole).abs().max() <= 1e-6


def test_the_command_line_overrides_the_hyperparameters_of_the_example(module: Load) -> None:
    submitting = module("common", "common.submitting")
    parser = submitting.arguments_of("Trains.\n\nUsage: ...")
    arguments = parser.parse_args(["--hosts", "2", "--ranks", "16", "--set", "lr=0.5", "--set", "pretrained=a/b"])
    assert submitting.settings_of(arguments, {"rank-batch": 4, "lr": 0.1}) == {
        "rank-batch": 4,
        "global-batch": 64,
        "lr": 0.5,
        "pretrained": "a/b",
    }
    with pytest.raises(SystemExit, match="--set lr: write it as NAME=VALUE"):
        submitting.settings_of(parser.parse_args(["--set", "lr"]), {"rank-batch": 4})
