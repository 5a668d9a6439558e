"""Record what a script does with tensors: operations, the modules that run them, and the life of each allocation.

    recorder = Recorder(on_step=...)
    with recorder.watching():
        run_the_script()

Every operation, forward and backward, passes this dispatch mode, in every thread. In the backward an operation belongs
to the module whose forward recorded the node; nodes are numbered in the order of recording, in each thread on its own.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from herringbone_contract.library_hooks import require
from herringbone_parallel.core.prediction.measurement import Operation, Phase
from herringbone_parallel.torch.library_hooks import MEASURE
from herringbone_parallel.torch.measure.operations import Unkeyed, describe, key_of, tensors_of
from herringbone_parallel.torch.measure.records import Allocation, Modules, Record, Step
from herringbone_parallel.torch.measure.replacing import replaced
from herringbone_parallel.torch.measure.scratch import Scratch
from herringbone_parallel.torch.measure.skipping import Skipper


@dataclass
class _Frame:
    module: int
    recomputes: bool


@dataclass
class _Thread(threading.local):
    """The modules whose code a thread runs, and who recorded which of its autograd nodes."""

    frames: list[_Frame] = field(default_factory=list)
    # From node number `starts[i]` on, nodes were recorded by code of module `recorders[i]`.
    starts: list[int] = field(default_factory=lambda: [0])
    recorders: list[int] = field(default_factory=lambda: [-1])


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode. Numbers of modules are indices of `modules`, -1 is code outside of all."""

    def __init__(self, on_step: Callable[[Recorder], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.skipper = Skipper()
        self.scratch = Scratch()
        self.operations: list[Operation] = []
        self.calls: list[Record] = []
        self.allocations: list[Allocation] = []
        self.modules = Modules()
        self.steps: list[Step] = []
        # Outermost modules of forwards, as numbers, and their batch sizes, by the moment of the call.
        self.forwards: list[tuple[int, int, int | None]] = []
        # The moments of those that a backward may follow.
        self.recorded: set[int] = set()
        # Modules that were called with a tensor that needs a gradient.
        self.fed: set[int] = set()
        # Before this moment, the script made its model and optimizer.
        self.prepared = 0
        self.paused = 0
        # Whether the job has GPUs, and where the call that runs now puts its result; None for where its inputs are.
        self.has_devices = False
        # Other modes that each thread of the script enters.
        self.companions: list[Any] = []
        self.placing: bool | None = None
        self._on_step = on_step
        self._thread = _Thread()
        self._numbers: dict[Hashable, int] = {}
        self._living: dict[int, Allocation] = {}
        self._optimizing = 0
        self._microbatch = 0
        # Whether a forward, and after it a backward, has run since the last step.
        self._forward = self._backward = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap `__torch_dispatch__` in torch._dynamo, whose import takes seconds. Nothing is compiled here.
        return False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record everything in the `with` block, and in threads that start there."""
        call, run, register = nn.Module.__call__, threading.Thread.run, nn.Module.register_parameter
        recorder = self

        def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with recorder.module(self, args, kwargs):
                return call(self, *args, **kwargs)

        def entered(self: threading.Thread) -> None:
            with ExitStack() as modes:
                for mode in (recorder, *recorder.companions):
                    modes.enter_context(mode)
                run(self)

        def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
            register(self, name, param)
            # A lazy module's parameter has no memory before its first call, which gives it the real class.
            if param is None or is_lazy(param):
                return
            if isinstance(param, torch.Tensor) and param.layout is torch.strided and not param.is_meta:
                # Nothing that is computed from it has true values.
                recorder.skipper.forget(param)

        require(MEASURE)
        with ExitStack() as stack:
            stack.enter_context(replaced(nn.Module, __call__=watched, register_parameter=registered))
            stack.enter_context(replaced(threading.Thread, run=entered))
            stack.callback(register_optimizer_step_pre_hook(self._begin_step).remove)
            stack.callback(register_optimizer_step_post_hook(self._end_step).remove)
            stack.enter_context(self)
            yield

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Count nothing in the `with` block."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run the `with` block as if there was no recorder: tensors are computed, and nothing is counted."""
        with self.quiet(), _disable_current_modes():
            yield

    @contextmanager
    def module(self, module: nn.Module, args: Any = (), kwargs: Any = None) -> Iterator[None]:
        """Count operations in the `with` block as this module's."""
        thread = self._thread
        if self.paused:
            yield
            return
        number = self.modules.number(module)
        if any(tensor.requires_grad for tensor in tensors_of((args, kwargs or {}))):
            self.fed.add(number)
        recomputes = torch._C._current_autograd_node() is not None
        if not thread.frames and not recomputes:
            self._begin_forward(number, args, kwargs)
        thread.frames.append(_Frame(number, recomputes or bool(thread.frames and thread.frames[-1].recomputes)))
        self._note_recorder()
        try:
            yield
        finally:
            thread.frames.pop()
            self._note_recorder()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind is not torch.Tensor and kind is not nn.Parameter and _dispatches(kind) for kind in types):
            # A subclass such as DTensor: its own code calls operations on ordinary tensors.
            return NotImplemented
        if any(is_lazy(tensor) for tensor in tensors_of((args, kwargs))):
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.skipper.scalar(args[0])
        key: Hashable | None
        try:
            key = (func, key_of(args), key_of(tuple(kwargs.items())))
        except Unkeyed:
            key = None
        if key is not None and torch.get_default_dtype() is not torch.float32:
            key = (key, torch.get_default_dtype())
        if self.paused:
            return self.skipper.run(func, args, kwargs, key)[0]
        inputs = tensors_of((args, kwargs))
        module, phase = self._where()
        for tensor in inputs:
            self._see(tensor, module, phase, made=False)
        result, fallback = self.skipper.run(func, args, kwargs, key)
        outputs = tensors_of(result)
        if func.namespace in _UNCOUNTED or any(tensor.is_meta for tensor in outputs or inputs):
            return result
        moment = len(self.calls)
        on_device = self.has_devices and self._computes_on_device(inputs)
        if self.has_devices and not on_device:
            # Work of the host does not count: it is neither the device's memory nor its time.
            for tensor in outputs:
                self._see(tensor, module, phase, made=True, moment=moment)
            return result
        number = None if key is None else self._numbers.get(key)
        if number is None:
            number = len(self.operations)
            self.operations.append(describe(func, args, kwargs, result, fallback=fallback))
            self.scratch.note(number, func, args, kwargs, self.operations[-1])
            if key is not None:
                self._numbers[key] = number
        owner = self._owner(inputs, phase)
        self.calls.append(Record(number, module, phase, self._microbatch, owner))
        for tensor in outputs:
            self._see(tensor, module, phase, made=True, moment=moment)
            if isinstance(owner, Allocation):
                allocation = self._living.get(_key(tensor))
                if allocation is not None and allocation.born == moment:
                    allocation.parent = owner
        if on_device:
            for tensor in outputs[: _ON_DEVICE.get(func.overloadpacket.__name__)]:
                allocation = self._living.get(_key(tensor))
                if allocation is not None and (allocation.born == moment or self.placing is not None):
                    allocation.on_device = True
        return result

    def _computes_on_device(self, inputs: list[torch.Tensor]) -> bool:
        if self.placing is not None:
            return self.placing
        allocations = (self._living.get(_key(tensor)) for tensor in inputs)
        return any(allocation is not None and allocation.on_device for allocation in allocations)

    def _owner(self, inputs: list[torch.Tensor], phase: Phase) -> Allocation | int | None:
        if phase is Phase.BACKWARD:
            node: Any = torch._C._current_autograd_node()
            variable = getattr(node, "variable", None)
            return None if variable is None else id(variable)
        if phase is Phase.OPTIMIZER and inputs:
            return self._living.get(_key(inputs[0]))
        return None

    def note_input(self, tensor: torch.Tensor) -> None:
        """Note a tensor of a batch that a loader has made."""
        self._see(tensor, -1, Phase.DATA, made=True)
        allocation = self._living.get(_key(tensor))
        if allocation is not None:
            allocation.is_input = True

    def begin_batch(self, moment: int) -> None:
        """Note that the script has asked for a batch; what it did before its first step was preparation."""
        if not self.steps and not self._backward:
            self.prepared = max(self.prepared, moment)

    def allocation(self, tensor: torch.Tensor) -> Allocation | None:
        """Return the allocation that holds a tensor."""
        return self._living.get(_key(tensor))

    def _where(self) -> tuple[int, Phase]:
        """Return the module and the phase of the operation that runs now."""
        thread = self._thread
        node = torch._C._current_autograd_node()
        if thread.frames:
            frame = thread.frames[-1]
            if frame.recomputes:
                return frame.module, Phase.RECOMPUTE
            if node is None:
                return frame.module, Phase.FORWARD
        if node is not None:
            self._backward = True
            return self._number_of_node(node), Phase.BACKWARD
        if self._optimizing:
            return -1, Phase.OPTIMIZER
        if self._backward:
            return -1, Phase.BETWEEN
        return -1, Phase.FORWARD if self._forward else Phase.DATA

    def _number_of_node(self, node: Any) -> int:
        """Return the number of the module that recorded an autograd node; -1 for code outside of modules."""
        sequence = getattr(node, "_sequence_nr", None)
        if sequence is None or hasattr(node, "variable"):
            return -1
        thread = self._thread
        return thread.recorders[bisect_right(thread.starts, sequence()) - 1]

    def _note_recorder(self) -> None:
        thread = self._thread
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if number >= thread.starts[-1]:
            thread.starts.append(number)
            thread.recorders.append(thread.frames[-1].module if thread.frames else -1)

    def _begin_forward(self, number: int, args: Any, kwargs: Any) -> None:
        if self._backward:
            # The operations since the last backward made the next microbatch.
            self._microbatch += 1
            for record in reversed(self.calls):
                if record.phase is not Phase.BETWEEN:
                    break
                record.phase = Phase.DATA
        self._forward, self._backward = True, False
        if torch.is_grad_enabled():
            self.recorded.add(len(self.calls))
        tensors = tensors_of((args, kwargs or {}))
        sizes = [tensor.shape[0] for tensor in tensors if tensor.dim()]
        self.forwards.append((len(self.calls), number, sizes[0] if sizes else None))

    def _begin_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.paused:
            return
        if not self._optimizing:
            self.steps.append(Step(optimizer, len(self.calls), -1))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                allocation = None if parameter.grad is None else self.allocation(parameter.grad)
                if allocation is not None:
                    allocation.gradient = id(parameter)
        self._optimizing += 1

    def _end_step(self, *_: Any) -> None:
        if self.paused:
            return
        self._optimizing -= 1
        if self._optimizing:
            return
        self.steps[-1].end = len(self.calls)
        self._forward = self._backward = False
        self._microbatch = 0
        self._on_step(self)

    def _see(self, tensor: torch.Tensor, module: int, phase: Phase, *, made: bool, moment: int = -1) -> None:
        """Note the storage of a tensor if it is a new one."""
        if tensor.is_meta or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._living.get(key)
        if known is not None:
            size = storage.nbytes()
            if size > known.bytes:
                known.bytes = size
            return
        born = len(self.calls) if moment < 0 else moment
        allocation = Allocation(storage.nbytes(), born, module, self._microbatch, phase, is_input=not made)
        living, calls = self._living, self.calls

        def freed(_: Any) -> None:
            living.pop(key, None)
            allocation.freed = len(calls)

        allocation.reference = weakref.ref(storage, freed)
        living[key] = allocation
        self.allocations.append(allocation)


# Marks of the profiler, and collectives, which cost nothing in a fake process group.
_UNCOUNTED = {"profiler", "c10d", "_c10d_functional"}


# The number of results on the device, for operations that have others on the host: lengths.
_ON_DEVICE = {"_pack_padded_sequence": 1}


def _key(tensor: torch.Tensor) -> int:
    # A sparse tensor has no storage of its own: its indices and values are tensors.
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


def _dispatches(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl
