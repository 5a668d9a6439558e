"""The task of both scripts: a small network on generated numbers. The step alone decides its batch."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

BATCH, WIDTH, CLASSES = 64, 32, 10
# SageMaker copies this folder to checkpoint_s3_uri while the job runs, and back before a restart.
CHECKPOINTS = Path(os.environ["SM_CHECKPOINT_DIR"])
# A shell's exit status for a program that SIGTERM ended. With 0, the job would count as completed.
STOPPED = 143


class Net(nn.Module):
    """Two linear layers for vectors of `WIDTH` numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(inputs)))


def batch(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, also after a restart: inputs [BATCH, WIDTH] and labels [BATCH]."""
    generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)
