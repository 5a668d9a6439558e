"""Small training loops, and the means to measure them and to run them for real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from herringbone_parallel.core.prediction.measurement import Kind, Measurement
from herringbone_parallel.torch.measure.script import Session


def measured(loop: Callable[[], Any], **options: Any) -> Measurement:
    """Return the measurement of a training loop."""
    session = Session(**options)
    with session.measuring():
        loop()
    return session.result()


def bytes_by_kind(measurement: Measurement) -> Counter[Kind]:
    counts: Counter[Kind] = Counter()
    for tensor in measurement.tensors:
        counts[tensor.kind] += tensor.bytes
    return counts


def peak_of(measurement: Measurement) -> int:
    """Return the most bytes that live at one moment."""
    changes: Counter[int] = Counter()
    for tensor in measurement.tensors:
        changes[tensor.born] += tensor.bytes
        if tensor.freed >= 0:
            changes[tensor.freed] -= tensor.bytes
    live = peak = 0
    for moment in sorted(changes):
        live += changes[moment]
        peak = max(peak, live)
    return peak


def real_peak_of(loop: Callable[[], Any]) -> int:
    """Return the most bytes that torch's allocator has given out while the loop ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loop()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


class Convolutions(nn.Sequential):
    """Has convolutions, BatchNorm and pooling."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 10),
        )


class Words(nn.Module):
    """Has embeddings, and two layers of a transformer."""

    def __init__(self, vocabulary: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embed(tokens)
        for layer in self.layers:
            states = layer(states)
        result: torch.Tensor = self.head(states)
        return result


class Recurrent(nn.Module):
    """Has an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.lstm(inputs)[0])
        return result


def train_convolutions(steps: int = 3) -> None:
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train_words(steps: int = 3) -> None:
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        tokens = torch.randint(0, 1000, (8, 64))
        scores = model(tokens)
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def train_recurrent(steps: int = 3) -> None:
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        inputs = torch.randn(16, 20, 64)
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
