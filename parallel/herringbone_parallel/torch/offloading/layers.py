"""Activation offloading of a model's checkpointed layers, which are loaded back in the reverse order of the forward.

With a horizon of 2, the device's memory holds the inputs of two layers at most. The one whose backward runs, and the
one before it, which is on its way back:

    forward     layer 0   layer 1   layer 2   layer 3
    to host          0 ------>  1 ------>  2 ------>
    backward    layer 3   layer 2   layer 1   layer 0
    to device        1 ------>  0 ------>

Source: the developer guide of SMP v2, "Activation offloading".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from herringbone_parallel.torch.offloading.host_copy import CopyStreams
from herringbone_parallel.torch.offloading.saved import SavedInputs

# The attribute of `transformers.GradientCheckpointingLayer` that holds torch's `checkpoint`.
_HUGGING_FACE = "_gradient_checkpointing_func"


class LayerOffloading:
    """Moves the inputs of checkpointed layers to host memory between their forward and their backward.

        offloading = LayerOffloading(horizon=2, device=torch.device("cuda", 0))
        for block in model.blocks:
            offloading.wrap(block)                  # a block whose forward is checkpointed already
        with offloading.layer():                    # or around one call
            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)

    `horizon` is the largest number of layers whose inputs are in the device's memory at a time; 0 counts as 1. One
    object serves one model. Calls without gradients move nothing. A forward that has no backward is forgotten with its
    graph. `peak_layers` and `peak_bytes` are the largest numbers of layers and bytes of inputs that the device held.
    """

    def __init__(self, *, horizon: int, device: torch.device) -> None:
        self._horizon = max(horizon, 1)
        self._streams = CopyStreams(device)
        # In the order of the forward; those in front of `_layer_ahead` of a backward are loaded back next.
        self._calls: list[_LayerCall] = []
        self.peak_layers = 0
        self.peak_bytes = 0

    def wrap(self, module: nn.Module) -> None:
        """Offload the inputs of a module from now on, whose forward is checkpointed.

        Layers of Hugging Face call a function that checkpoints them; for these, the function is wrapped.
        """
        name = _HUGGING_FACE if callable(getattr(module, _HUGGING_FACE, None)) else "forward"
        setattr(module, name, self.around(getattr(module, name)))

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, each of whose calls is one checkpointed layer, with its inputs offloaded."""

        @functools.wraps(function)
        def offloaded(*args: Any, **kwargs: Any) -> Any:
            with self.layer():
                return function(*args, **kwargs)

        return offloaded

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Offload what autograd saves in a `with` block, the call of one layer."""
        if not torch.is_grad_enabled():
            yield
            return
        call = _LayerCall(self, self._streams)
        with call.hooks():
            yield
        # Now, and not at the layer's start: its input is in use until the layer has run.
        self._calls = [before for before in self._calls if before.bytes] + ([call] if call.bytes else [])
        for before in self._calls[: -self._horizon]:
            before.drop_sources()
        self._count()

    def load_before(self, call: _LayerCall) -> None:
        """Load the inputs of this layer, and of those before it, whose backward comes next."""
        place = self._calls.index(call)
        # A later layer whose backward did not come, because the loss does not depend on it, holds no memory.
        for later in self._calls[place + 1 :]:
            later.drop_sources()
        for next_call in self._calls[max(0, place + 1 - self._horizon) : place + 1][::-1]:
            next_call.load()
        self._count()

    def _count(self) -> None:
        held = [held for call in self._calls if (held := call.bytes_on_device)]
        self.peak_layers = max(self.peak_layers, len(held))
        self.peak_bytes = max(self.peak_bytes, sum(held))


class _LayerCall(SavedInputs):
    """The saved inputs of one call of a layer."""

    def __init__(self, offloading: LayerOffloading, streams: CopyStreams) -> None:
        super().__init__(streams)
        self._offloading = offloading

    def before_take(self) -> None:
        self._offloading.load_before(self)
