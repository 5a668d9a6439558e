"""The data and the network of both training scripts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH = 64


def device() -> torch.device:
    """Return this rank's GPU, which ranks share where there are fewer; the CPU where there is none."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus) if gpus else torch.device("cpu")


def load(channel: str) -> dict[str, torch.Tensor]:
    """Read the arrays that submit.py wrote, onto this rank's device: images [n, 1, 8, 8] in 0..1, labels [n]."""
    arrays = np.load(Path(os.environ[f"SM_CHANNEL_{channel.upper()}"]) / "digits.npz")
    return {name: torch.from_numpy(arrays[name]).to(device()) for name in arrays.files}


def batches(data: dict[str, torch.Tensor], epoch: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return one epoch's shuffled training batches, without the last incomplete one."""
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    order = torch.randperm(len(data["train_labels"]), generator=generator).to(data["train_labels"].device)
    whole = len(order) // BATCH
    return [(data["train_images"][part], data["train_labels"][part]) for part in order[: whole * BATCH].split(BATCH)]


class Net(nn.Module):
    """A small convolutional network for 8 x 8 images: two convolutions, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))
