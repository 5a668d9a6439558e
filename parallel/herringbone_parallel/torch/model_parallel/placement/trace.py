"""Trace one run of a model: the work of each module, the memory its backward keeps, and the tensors between modules.

Every operation, forward and backward, passes a dispatch mode. In the forward it belongs to the innermost module whose
code runs. In the backward it belongs to the module in which autograd recorded the node: nodes are numbered in the order
of recording, so a range of numbers is a range of one module's code. Operations of the step function itself, such as the
loss, belong to the model.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from herringbone_parallel.core.partition.work import Device
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.placement.untouched import SavedModel, storage_key
from herringbone_parallel.torch.operation_work import is_free, work


@dataclass(slots=True)
class ModuleCost:
    """The cost of one module's own operations: estimated and measured seconds, and bytes that its backward keeps.

    `order` is the number of the module's first call.
    """

    order: int
    estimated: float = 0.0
    clocked: float = 0.0
    kept_bytes: int = 0


@dataclass(slots=True)
class SharedTensor:
    """A tensor that the module `source` made or owns; `users` are the bytes that each other module took first."""

    source: str
    users: dict[str, int] = field(default_factory=dict)
    gradient: bool = False


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode of a trace; use `watching`, which enters it together with its hooks.

    `costs` are the modules that ran, by path, in the order of their first call. `shared` are the tensors that one
    module made and another used.
    """

    def __init__(self, module: nn.Module, device: Device, saved: SavedModel, *, clock: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = {"": ModuleCost(0)}
        self._device = device
        self._saved = saved
        # A GPU's operation returns before it has run, so a measurement has to wait for it. On the CPU the thread's own
        # time is used, in which the work of other threads does not count.
        self._waits = clock and torch.cuda.is_available()
        self._now = time.perf_counter if self._waits else time.thread_time
        self._path_of = {id(inner): path for path, inner in module.named_modules()}
        # The paths of the modules whose code runs now, the innermost last.
        self._inside = [""]
        # From node number `_starts[i]` on, autograd's nodes were recorded by code of module `_recorders[i]`.
        self._starts, self._recorders = [0], [""]
        self._tensors: list[SharedTensor] = []
        # By storage: the newest tensor in it, the modules that own it, and the storages that the backward keeps.
        self._maker: dict[int, SharedTensor] = {}
        self._owners: dict[int, set[str]] = {}
        self._counted: set[int] = set()
        # An address is not used again as long as there is a weak reference to its storage.
        self._references: list[Any] = []
        for path, inner in module.named_modules():
            for tensor in (*inner._parameters.values(), *inner._buffers.values()):
                if tensor is not None:
                    self._owners.setdefault(storage_key(tensor), set()).add(path)
            for parameter in inner._parameters.values():
                if parameter is not None and storage_key(parameter) not in self._maker:
                    self._made(storage_key(parameter), path)

    @property
    def shared(self) -> list[SharedTensor]:
        """The tensors that another module than their maker has used."""
        return [tensor for tensor in self._tensors if tensor.users]

    @contextmanager
    def module(self, module: nn.Module) -> Iterator[None]:
        """Count operations in the `with` block as this module's; note the module on an exception."""
        path = self._path_of.get(id(module))
        if path is None:
            yield
            return
        self.costs.setdefault(path, ModuleCost(len(self.costs)))
        self._inside.append(path)
        self._note_recorder()
        try:
            yield
        except Exception as error:
            note_module(error, path or type(module).__name__)
            raise
        finally:
            self._inside.pop()
            self._note_recorder()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count the tensors that autograd keeps for the backward: each storage once, no parameters, nothing sparse."""
        key = storage_key(tensor)
        if key and key not in self._owners and key not in self._counted:
            self._counted.add(key)
            self._hold_address(tensor)
            kept = min(tensor.untyped_storage().nbytes(), _bytes(tensor))
            self.costs[self._inside[-1]].kept_bytes += kept
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        path = self._inside[-1] if len(self._inside) > 1 or node is None else self._recorder(node)
        inputs = _tensors((args, kwargs))
        if func._schema.is_mutable:
            for tensor in inputs:
                self._saved.before_write(tensor)
        start = self._now()
        result = func(*args, **kwargs)
        if self._waits:
            torch.cuda.synchronize()
        cost = self.costs.setdefault(path, ModuleCost(len(self.costs)))
        cost.clocked += self._now() - start
        outputs = _tensors(result)
        if not is_free(func):
            cost.estimated += self._device.seconds(work(func, args, kwargs, result), _total(inputs) + _total(outputs))
        # Gradients travel back the way their values came, so only the forward is noted.
        if node is None:
            self._note_tensors(path, func, inputs, outputs)
        return result

    def _note_tensors(self, path: str, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        keys = {storage_key(tensor) for tensor in inputs}
        for tensor in inputs:
            key = storage_key(tensor)
            shared = self._maker.get(key)
            # A module's own parameter is on its rank in any case.
            if shared is None or shared.source == path or path in self._owners.get(key, ()):
                continue
            shared.users.setdefault(path, _bytes(tensor))
            shared.gradient |= tensor.requires_grad and torch.is_grad_enabled()
        for tensor in outputs:
            key = storage_key(tensor)
            if key not in keys:
                self._hold_address(tensor)
                self._made(key, path)
            elif func._schema.is_mutable and key in self._maker and self._maker[key].source != path:
                self._made(key, path)

    def _hold_address(self, tensor: torch.Tensor) -> None:
        # A sparse tensor has no storage, and so no address that another one could get.
        if storage_key(tensor):
            self._references.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def _made(self, key: int, path: str) -> None:
        if key:
            self._maker[key] = SharedTensor(path)
            self._tensors.append(self._maker[key])

    def _note_recorder(self) -> None:
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        # Smaller numbers come from another thread: on a GPU autograd recomputes checkpointed code in its own thread.
        if number >= self._starts[-1]:
            self._starts.append(number)
            self._recorders.append(self._inside[-1])

    def _recorder(self, node: Any) -> str:
        """Return the module whose code recorded an autograd node; for a parameter's sum, the module that owns it."""
        parameter = getattr(node, "variable", None)
        if isinstance(parameter, torch.Tensor):
            return min(self._owners.get(storage_key(parameter), {""}))
        number = getattr(node, "_sequence_nr", None)
        return self._inside[-1] if number is None else self._recorders[bisect_right(self._starts, number()) - 1]


@contextmanager
def watching(trace: Trace) -> Iterator[None]:
    """Trace the calling thread inside the `with` block."""
    before = nn.Module.__call__

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with trace.module(self):
            return before(self, *args, **kwargs)

    hooks = torch.autograd.graph.saved_tensors_hooks(trace.pack, lambda tensor: tensor)
    disable, transforms = torch.autograd.graph.disable_saved_tensors_hooks, [0]

    @contextmanager
    def suspended(error_message: str) -> Iterator[None]:
        # torch.func.grad refuses to run under hooks. What it saves is gone when it returns, so the trace needs none.
        transforms[0] += 1
        if transforms[0] == 1:
            hooks.__exit__()
        try:
            with disable(error_message):
                yield
        finally:
            transforms[0] -= 1
            if transforms[0] == 0:
                hooks.__enter__()

    nn.Module.__call__ = watched  # type: ignore[method-assign]
    torch.autograd.graph.disable_saved_tensors_hooks = suspended
    try:
        with trace, hooks:
            yield
    finally:
        torch.autograd.graph.disable_saved_tensors_hooks = disable
        nn.Module.__call__ = before  # type: ignore[method-assign]


def _tensors(structure: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves_of(structure) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _total(tensors: list[torch.Tensor]) -> int:
    return sum(map(_bytes, tensors))
