"""Run a model and restore everything afterwards: parameters, buffers, gradients, attributes, random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime import randomness


class SavedModel:
    """A copy of a model's contents before a run.

    Buffers and attributes are copied at once. A parameter is copied when an operation is about to write to it, which
    happens in hardly any model. Copying all parameters would double the memory.
    """

    def __init__(self, module: nn.Module) -> None:
        self._attributes = [(inner, dict(inner.__dict__)) for inner in module.modules()]
        # The dicts themselves stay the same objects, so their contents are saved separately from the attributes.
        self._members: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (members, dict(members))
            for inner in module.modules()
            for members in (inner._parameters, inner._buffers, inner._modules)
        ]
        kept = (value for inner in module.modules() for value in inner.__dict__.values() if type(value) is torch.Tensor)
        self._copies = [(tensor, tensor.detach().clone()) for tensor in (*module.buffers(), *kept)]
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        self._parameter_of = {storage_key(parameter): parameter for parameter in module.parameters()}

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy the parameter that `tensor` is, or is a view of; call it before each write."""
        # Popped, so that only the first write copies.
        parameter = self._parameter_of.pop(storage_key(tensor), None)
        if parameter is not None:
            self._copies.append((parameter, parameter.detach().clone()))

    def restore(self) -> None:
        """Undo the changes of the run."""
        # Cleared first: the run may have added attributes.
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
    """Return a number that tensors of the same memory share; 0 for tensors without a storage, such as sparse ones."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0


@contextmanager
def untouched(module: nn.Module) -> Iterator[SavedModel]:
    """Restore the module and the random number generators after the `with` block.

        with untouched(module):
            module(inputs).sum().backward()

    Inside, parameters have no gradients at first. Lists and other objects that the module's code changes in place stay
    changed here; `runtime.kept` restores them.
    """
    saved = SavedModel(module)
    restore_torch, numpy_state = randomness.save_generators(), np.random.get_state()
    python_state = random.getstate()
    # Set aside and not zeroed: the run must not add to the script's gradients.
    for parameter in module.parameters():
        parameter.grad = None
    try:
        yield saved
    finally:
        saved.restore()
        restore_torch()
        np.random.set_state(numpy_state)
        random.setstate(python_state)
