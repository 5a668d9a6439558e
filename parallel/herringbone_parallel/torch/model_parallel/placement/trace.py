"""Watches one run of a model: which module computes what, what its backward keeps, and what passes between modules.

Every operation, forward and backward, goes by a dispatch mode. It belongs to the innermost module whose code is
running; in the backward it belongs to the module in which autograd recorded the node (nodes are numbered in the order
of recording, so that a stretch of numbers is a stretch of one module's code). Operations of the step function itself,
such as the loss, belong to the model.
"""

from __future__ import annotations

import functools
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
from torch.utils.flop_counter import flop_registry

from herringbone_parallel.core.partition.work import Device
from herringbone_parallel.core.structure import leaves_of
from herringbone_parallel.torch.model_parallel.failures import note_module
from herringbone_parallel.torch.model_parallel.placement.untouched import Kept, storage_key


@dataclass(slots=True)
class Seen:
    """What one module did by itself: seconds by the estimate and by the clock, and bytes that its backward keeps."""

    order: int
    estimated: float = 0.0
    clocked: float = 0.0
    kept_bytes: int = 0


@dataclass(slots=True)
class Passed:
    """A tensor that the module `source` made, or owns, and the bytes of it that each other module took first."""

    source: str
    users: dict[str, int] = field(default_factory=dict)
    gradient: bool = False


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches while it is entered; use `watching`, which enters it together with its hooks.

    `seen` has the modules that ran, by path, in the order of their first call; `passed` the tensors that one module
    made and another used.
    """

    def __init__(self, module: nn.Module, device: Device, kept: Kept, *, clock: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = {"": Seen(0)}
        self._device = device
        self._kept = kept
        # What a GPU is handed returns at once; only a clock has to wait for it. On the CPU other work takes no part in
        # the thread's own time.
        self._waits = clock and torch.cuda.is_available()
        self._now = time.perf_counter if self._waits else time.thread_time
        self._path_of = {id(inner): path for path, inner in module.named_modules()}
        self._inside = [""]
        # From which autograd node on code of which module recorded.
        self._starts, self._recorders = [0], [""]
        self._passed: list[Passed] = []
        self._maker: dict[int, Passed] = {}
        self._owners: dict[int, set[str]] = {}
        self._counted: set[int] = set()
        # An address is not used again while a weak reference to its storage is there.
        self._references: list[Any] = []
        for path, inner in module.named_modules():
            for tensor in (*inner._parameters.values(), *inner._buffers.values()):
                if tensor is not None:
                    self._owners.setdefault(storage_key(tensor), set()).add(path)
            for parameter in inner._parameters.values():
                if parameter is not None and storage_key(parameter) not in self._maker:
                    self._made(storage_key(parameter), path)

    @property
    def passed(self) -> list[Passed]:
        return [value for value in self._passed if value.users]

    @contextmanager
    def module(self, module: nn.Module) -> Iterator[None]:
        """Count what happens in the `with` block as this module's; an exception learns where it was raised."""
        path = self._path_of.get(id(module))
        if path is None:
            yield
            return
        self.seen.setdefault(path, Seen(len(self.seen)))
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
        """Count what autograd keeps for the backward, each storage once; parameters are there anyway."""
        key = storage_key(tensor)
        if key not in self._owners and key not in self._counted:
            self._counted.add(key)
            self._hold_address(tensor)
            kept = min(tensor.untyped_storage().nbytes(), _bytes(tensor))
            self.seen[self._inside[-1]].kept_bytes += kept
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        path = self._inside[-1] if len(self._inside) > 1 or node is None else self._recorder(node)
        given = _tensors((args, kwargs))
        if func._schema.is_mutable:
            for tensor in given:
                self._kept.before_write(tensor)
        start = self._now()
        result = func(*args, **kwargs)
        if self._waits:
            torch.cuda.synchronize()
        seen = self.seen.setdefault(path, Seen(len(self.seen)))
        seen.clocked += self._now() - start
        made = _tensors(result)
        if not (_is_view(func) or func in _FREE):
            seen.estimated += self._device.seconds(
                _operations(func, args, kwargs, result), _total(given) + _total(made)
            )
        if node is None:
            self._note_values(path, func, given, made)
        return result

    def _note_values(self, path: str, func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        keys = {storage_key(tensor) for tensor in given}
        for tensor in given:
            key = storage_key(tensor)
            value = self._maker.get(key)
            if value is None or value.source == path or path in self._owners.get(key, ()):
                continue
            value.users.setdefault(path, _bytes(tensor))
            value.gradient |= tensor.requires_grad and torch.is_grad_enabled()
        for tensor in made:
            key = storage_key(tensor)
            if key not in keys:
                self._hold_address(tensor)
                self._made(key, path)
            elif func._schema.is_mutable and key in self._maker and self._maker[key].source != path:
                self._made(key, path)

    def _hold_address(self, tensor: torch.Tensor) -> None:
        self._references.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def _made(self, key: int, path: str) -> None:
        if key:
            self._maker[key] = Passed(path)
            self._passed.append(self._maker[key])

    def _note_recorder(self) -> None:
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        # On a GPU autograd recomputes in a thread of its own, which has its own numbers.
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
    """Watch what this thread does inside the `with` block."""
    before = nn.Module.__call__

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with trace.module(self):
            return before(self, *args, **kwargs)

    nn.Module.__call__ = watched  # type: ignore[method-assign]
    try:
        with trace, torch.autograd.graph.saved_tensors_hooks(trace.pack, lambda tensor: tensor):
            yield
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]


# They allocate, and touch nothing.
_FREE = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.empty_strided.default}


# Whole layers in one operation, for which torch has no formula: how often their matrices are multiplied.
_RECURRENT = {"mkldnn_rnn_layer": 1, "mkldnn_rnn_layer_backward": 2, "_cudnn_rnn": 1, "_cudnn_rnn_backward": 2}


@functools.cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and not func._schema.is_mutable and any(one.alias_info is not None for one in returns)


def _operations(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    count = flop_registry.get(func.overloadpacket)
    if count is not None:
        return int(count(*args, **kwargs, out_val=result))
    times = _RECURRENT.get(func.overloadpacket.__name__)
    if times is None:
        return 0
    inputs = args[0]
    matrices = [tensor for tensor in _tensors(args[1:3]) if tensor.dim() == 2]
    rows: int = inputs.numel() // inputs.shape[-1]
    return 2 * times * rows * sum(matrix.numel() for matrix in matrices)


def _tensors(structure: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves_of(structure) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _total(tensors: list[torch.Tensor]) -> int:
    return sum(map(_bytes, tensors))
