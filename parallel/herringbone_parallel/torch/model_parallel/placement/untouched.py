"""Runs a model and puts everything back: parameters, buffers, gradients, attributes, random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime import randomness


class Kept:
    """What a model was before it ran.

    Buffers and attributes are copied at once. A parameter is copied when somebody is about to write to it, which hardly
    any model does: all of them would double the memory.
    """

    def __init__(self, module: nn.Module) -> None:
        self._attributes = [(inner, dict(inner.__dict__)) for inner in module.modules()]
        self._members: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (members, dict(members))
            for inner in module.modules()
            for members in (inner._parameters, inner._buffers, inner._modules)
        ]
        self._copies = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        self._parameter_of = {storage_key(parameter): parameter for parameter in module.parameters()}

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy the parameter whose data `tensor` is or looks into; other tensors may be written to."""
        parameter = self._parameter_of.pop(storage_key(tensor), None)
        if parameter is not None:
            self._copies.append((parameter, parameter.detach().clone()))

    def put_back(self) -> None:
        """Undo what the model's run has changed."""
        for inner, attributes in self._attributes:
            inner.__dict__.clear()
            inner.__dict__.update(attributes)
        for members, before in self._members:
            members.clear()
            members.update(before)
        with torch.no_grad():
            for tensor, copy in self._copies:
                tensor.copy_(copy)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


def storage_key(tensor: torch.Tensor) -> int:
    """Return what tensors of one memory have in common, 0 for those that have none (sparse ones)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0


@contextmanager
def untouched(module: nn.Module) -> Iterator[Kept]:
    """Leave the module, and the random numbers to come, as they were before the `with` block.

        with untouched(module):
            module(inputs).sum().backward()

    Gradients start from none inside. Lists and other objects that the module's code changes in place stay changed.
    """
    kept = Kept(module)
    restore_torch, numpy_state = randomness.keep(), np.random.get_state()
    python_state = random.getstate()
    for parameter in module.parameters():
        parameter.grad = None
    try:
        yield kept
    finally:
        kept.put_back()
        restore_torch()
        np.random.set_state(numpy_state)
        random.setstate(python_state)
