"""The hooks between autograd and host memory: which saved tensors move there, and how autograd gets them back."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from herringbone_parallel.torch.offloading.host_copy import CopyStreams, HostCopy


class SavedInputs:
    """The tensors that one checkpointed call has saved, in host memory.

        with saved.hooks():
            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
        saved.drop_sources()
        saved.load()                   # before the backward through the call
        saved.bytes_on_device

    torch's checkpoint saves the inputs of the call while these hooks are active, and all tensors inside of the call
    under hooks of its own. `before_take` is called when autograd wants the first of them.
    """

    def __init__(self, streams: CopyStreams) -> None:
        self._streams = streams
        # Weak: autograd's graph holds the copies, and frees them with the graph.
        self._copies: weakref.WeakSet[HostCopy] = weakref.WeakSet()

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context manager under which saved tensors move to host memory."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what autograd keeps instead of the tensor: its copy in host memory, or the tensor itself."""
        if not _moves(tensor, self._streams.device):
            return tensor
        copy = HostCopy(tensor, self._streams)
        self._copies.add(copy)
        return copy

    def unpack(self, packed: Any) -> torch.Tensor:
        """Return the tensor for the backward."""
        if isinstance(packed, HostCopy):
            self.before_take()
            return packed.take()
        tensor: torch.Tensor = packed
        return tensor

    def before_take(self) -> None:
        """Do nothing; a subclass loads other calls' tensors here."""

    def drop_sources(self) -> None:
        """Let the device reuse the memory of the tensors."""
        for copy in self._copies:
            copy.drop_source()

    def load(self) -> None:
        """Start to copy the tensors back to the device."""
        for copy in self._copies:
            copy.load()

    @property
    def bytes(self) -> int:
        """The bytes of the tensors that autograd still needs."""
        return sum(copy.bytes for copy in self._copies)

    @property
    def bytes_on_device(self) -> int:
        """The bytes that the device's memory holds for them."""
        return sum(copy.bytes for copy in self._copies if copy.on_device)


def _moves(tensor: torch.Tensor, device: torch.device) -> bool:
    """Say whether a saved tensor moves to host memory.

    Parameters stay, because the model holds them anyway. Expanded tensors stay, because a copy would be larger than
    their memory. Subclasses stay, such as `DTensor`: a copy of them needs a mesh, and may communicate.
    """
    if type(tensor) is not torch.Tensor or tensor.device.type != device.type or tensor.layout is not torch.strided:
        return False
    return 0 < tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
