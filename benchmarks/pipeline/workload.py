"""The model that both runtimes train: transformer blocks in equal contiguous parts. Counts autograd's saved bytes."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import nn

BLOCKS, WIDTH, HEADS, TOKENS, BATCH = 8, 256, 4, 64, 16


class Kept:
    """Counts the bytes of the tensors that autograd saves for backward, without parameters. `peak` is the maximum.

    `_lock` guards all members: microbatches run in several threads, and finalizers run in any of them.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._owners: dict[int, int] = {}
        self._parameters: set[int] = set()
        self._lock = threading.Lock()

    def leave_out(self, model: nn.Module) -> None:
        self._parameters |= {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            with self._lock:
                count = self._owners.get(storage.data_ptr(), 0)
                self._owners[storage.data_ptr()] = count + 1
                if count == 0:
                    self._now += storage.nbytes()
                    self.peak = max(self.peak, self._now)
        holder = _Holder(tensor)
        weakref.finalize(holder, self._drop, storage.data_ptr(), storage.nbytes())
        return holder

    @staticmethod
    def unpack(holder: Any) -> torch.Tensor:
        return holder.tensor

    def _drop(self, address: int, size: int) -> None:
        with self._lock:
            count = self._owners.get(address)
            if count is None:
                return
            if count == 1:
                del self._owners[address]
                self._now -= size
            else:
                self._owners[address] = count - 1


class _Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Block(nn.Module):
    """One transformer block. With `kept`, it counts the tensors that its forward saves."""

    def __init__(self, kept: Kept | None = None) -> None:
        super().__init__()
        self.kept = kept
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            return self.layer(x)
        with torch.autograd.graph.saved_tensors_hooks(self.kept.pack, self.kept.unpack):
            return self.layer(x)


def build(kept: Kept | None = None) -> nn.Sequential:
    """Return the whole model, with the same weights in every call."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(kept) for _ in range(BLOCKS)))
    if kept is not None:
        kept.leave_out(model)
    return model


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, both [BATCH, TOKENS, WIDTH]."""
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(BATCH, TOKENS, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)
