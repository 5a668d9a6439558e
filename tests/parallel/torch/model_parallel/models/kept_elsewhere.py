"""Models that keep state in rarer places than those of `kept`, or change what a call returns between steps."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
import weakref
from collections import UserDict
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.parallel.torch.model_parallel.models.kept import WIDTH, Net, Tensor


@dataclasses.dataclass(slots=True)
class Slots:
    gate: Any = None


def gated(h: Tensor) -> Tensor:
    return h * vars(gated)["gate"]


class OtherPlaces(Net):
    """Gates in slots, in classes of the standard library, on a function, in a buffer registered anew; and an array."""

    def start(self) -> None:
        self.slots, self.by_name, self.by_module = Slots(), UserDict[str, Tensor](), weakref.WeakKeyDictionary()
        self.array = np.ones(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate = x[:, :1]
        self.slots.gate = self.by_name["gate"] = self.by_module[self.a] = vars(gated)["gate"] = gate
        self.register_buffer("buffer", gate.abs() + 1, persistent=False)
        self.array += x.numpy().mean(0)
        h = gated(self.hidden(x) * self.slots.gate / self.buffer * torch.from_numpy(self.array.copy()))
        return h * self.by_name["gate"] + self.by_module[self.a]

    def left(self) -> Any:
        return [self.slots.gate, self.by_name["gate"], self.by_module[self.a], self.buffer, self.array]


SCALE = contextvars.ContextVar("SCALE", default=0.0)
OF_THREAD = threading.local()


class OfThreads(Net):
    """A context variable and an attribute of a thread, which the script sets before a step, and a forward changes."""

    def before(self) -> None:
        SCALE.set(SCALE.get() + 1)
        OF_THREAD.scale = getattr(OF_THREAD, "scale", 0.0) + 1

    def forward(self, x: Tensor) -> Tensor:
        scale = SCALE.get() + OF_THREAD.scale
        SCALE.set(SCALE.get() + 1)
        h = self.hidden(x)
        OF_THREAD.scale += float(h.detach().sum())
        return h * (scale + OF_THREAD.scale) / 10

    def left(self) -> Any:
        left = [SCALE.get(), OF_THREAD.scale]
        SCALE.set(min(SCALE.get(), 3.0))
        return left

    def start(self) -> None:
        SCALE.set(0.0)
        OF_THREAD.scale = 0.0


class Numbered(nn.Linear):
    """Counts the calls of all its instances, which live on several ranks."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Numbered.calls += 1
        return super().forward(x) * (1 + Numbered.calls / 10)


class CountsOfBlocks(Net):
    def start(self) -> None:
        Numbered.calls = 0
        for name in ("a", "b", "c"):
            getattr(self, name).__class__ = Numbered

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)

    def left(self) -> Any:
        return Numbered.calls


class BufferOfBlock(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        self.register_buffer("largest", h.detach().abs().max(), persistent=False)
        return h


class BuffersOfBlocks(Net):
    """A block assigns a buffer anew, and code of every rank reads it."""

    def start(self) -> None:
        self.b.__class__ = BufferOfBlock

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        return h / (1 + self.b.largest)

    def left(self) -> Any:
        return self.b.largest


class Frozen(Net):
    """The script freezes and thaws blocks between steps."""

    def start(self) -> None:
        self.steps = 0

    def before(self) -> None:
        self.steps += 1
        self.a.requires_grad_(self.steps != 2)
        self.b.requires_grad_(self.steps % 2 == 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)


CASES: dict[str, type[Net]] = {
    case.__name__: case for case in (OtherPlaces, OfThreads, CountsOfBlocks, BuffersOfBlocks, Frozen)
}
