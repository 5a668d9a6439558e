"""What both scripts train: a small network on numbers that are made up, each batch from its step alone."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

BATCH, WIDTH, CLASSES = 64, 32, 10
# SageMaker copies this folder to checkpoint_s3_uri while the job runs, and back before it starts again.
CHECKPOINTS = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")) / "checkpoints"
# What a shell says of a program that SIGTERM ended: nobody takes the run for a finished one.
STOPPED = 143


class Net(nn.Module):
    """Two linear layers for vectors of WIDTH numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(inputs)))


def batch(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step, the same whatever was trained before: inputs [BATCH, WIDTH], labels [BATCH]."""
    generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)
