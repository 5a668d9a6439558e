"""Record every optimizer step of an unmodified script; see `herringbone_contract.rehearsal.records.Step`.

    loader gives a batch     [1] `advanced`: which samples its sampler named
    module is called         [2] `called`: the samples it gets, the random numbers, and what it returns
    backward                 [3] `ran_backward`: the loss
    optimizer step begins    [4] `_before`: weights, the optimizer's state and settings
    optimizer step is over   [5] `_after`: the record is complete, and sent

Nothing here draws a random number, keeps a graph, makes a state of an optimizer or talks to other ranks, and an error
in here becomes a text in the record. Code that torch.compile traces passes by: a graph with our calls would be another.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.data.dataloader import _BaseDataLoaderIter

from herringbone_contract.library_hooks import require
from herringbone_contract.rehearsal.records import Step
from herringbone_contract.rehearsal.sending import Sender, place
from herringbone_parallel.torch.fingerprints import facts
from herringbone_parallel.torch.library_hooks import FINGERPRINTS
from herringbone_parallel.torch.step_hook import is_counting


def record() -> None:
    """Record the steps of this process from now on, and send them to the job's events."""
    require(FINGERPRINTS)
    recorder = Recorder(Sender().send)
    recorder.watch()
    # A child that trains is a process of its own.
    os.register_at_fork(after_in_child=lambda: recorder.begin(Sender().send))


class Recorder:
    """Watches the script; `send(step, rank)` gets each completed step."""

    def __init__(self, send: Callable[[Step, int | None], object]) -> None:
        self._inside = threading.local()
        # In the order of their first calls.
        self._roots: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        self._averages: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._begun: weakref.WeakKeyDictionary[Optimizer, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._known = 0
        self.begin(send)

    def begin(self, send: Callable[[Step, int | None], object]) -> None:
        """Count steps from 1 on, and send them by another function."""
        self._send, self._count = send, 0
        self._clear()

    def _clear(self) -> None:
        self._calls: list[tuple[int, torch.Tensor]] = []
        self._outputs: list[torch.Tensor] = []
        # Running statistics change in the forward.
        self._buffers: dict[int, facts.Measured] = {}
        self._losses: list[torch.Tensor] = []
        self._batches: list[list[str]] = []
        self._random: dict[str, str] = {}
        self._scale: dict[str, float] = {}
        self._missing: dict[str, None] = {}

    def watch(self) -> None:
        """Record from now on, until this process ends."""
        call: Any = nn.Module.__call__
        backward: Any = torch.autograd.backward
        draw: Any = _BaseDataLoaderIter._next_index
        advance = _BaseDataLoaderIter.__next__
        scaled_step: Any = torch.amp.GradScaler.step
        average: Any = AveragedModel.__init__
        inside = self._inside

        def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or getattr(inside, "module", False) or not _trains():
                return call(self, *args, **kwargs)
            inside.module = True
            try:
                recorder._called(self, args, kwargs)
                result = call(self, *args, **kwargs)
                recorder._returned(self, result)
                return result
            finally:
                inside.module = False

        def ran_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if is_counting() and not torch.compiler.is_compiling():
                recorder._backward(tensors)
            return backward(tensors, *args, **kwargs)

        def drawn(self: Any) -> Any:
            indices = draw(self)
            _waiting(self).append(indices)
            return indices

        def advanced(self: Any) -> Any:
            batch = advance(self)
            recorder._loaded(_waiting(self), batch)
            return batch

        def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
            with recorder._noting("the scale of the loss"):
                recorder._scale = {"loss scale": self.get_scale()}
            return scaled_step(self, *args, **kwargs)

        def averaged(self: Any, *args: Any, **kwargs: Any) -> None:
            average(self, *args, **kwargs)
            recorder._averages[self] = None

        recorder = self
        torch.amp.GradScaler.step = scaled  # type: ignore[method-assign]
        AveragedModel.__init__ = averaged  # type: ignore[method-assign]
        nn.Module.__call__ = called  # type: ignore[method-assign]
        torch.autograd.backward = ran_backward
        _BaseDataLoaderIter._next_index = drawn  # type: ignore[method-assign]
        _BaseDataLoaderIter.__next__ = advanced  # type: ignore[method-assign]
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Compute something for the record; what fails is named there."""
        try:
            with torch.no_grad():
                yield
        except Exception as error:  # noqa: BLE001 - a rehearsal must not end a script
            name = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
            self._missing[f"{what}: {name}{error}".partition(". ")[0][:200]] = None

    def _loaded(self, waiting: deque[Any], batch: Any) -> None:
        with self._noting("a batch"):
            indices = waiting.popleft() if waiting else None
            # A dataset without indices has as many None.
            names = set(indices) if isinstance(indices, list) else {indices}
            self._batches.append(["" if names <= {None} else facts.hashed(repr(indices)), *facts.contents(batch)])

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        with self._noting(f"what {type(module).__name__} was called with"):
            if next(module.parameters(), None) is None:
                # A loss, or a transform.
                return
            self._roots.setdefault(module)
            self._random = self._random or facts.random_numbers()
            self._buffers = facts.measured(module.buffers(), self._missing) | self._buffers
            digests = facts.samples((args, kwargs))
            if digests is not None:
                self._calls.append((threading.get_ident(), digests))

    def _returned(self, module: nn.Module, result: Any) -> None:
        if module in self._roots:
            with self._noting(f"what {type(module).__name__} returned"):
                self._outputs += facts.outputs(result)

    def _backward(self, tensors: Any) -> None:
        with self._noting("the loss"):
            roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            self._losses += [facts.local(root).detach().clone().reshape(()) for root in roots if root.numel() == 1]

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        # A step inside a step, such as a base class's, begins again.
        if torch.compiler.is_compiling() or not is_counting():
            return
        begun: dict[str, Any] = {}
        self._begun[optimizer] = begun
        with self._noting("weights"):
            begun["tensors"] = facts.tensors((self._roots, self._averages), optimizer, self._buffers, self._missing)
        with self._noting("the optimizer's state"):
            begun["state"] = facts.optimizer_state(optimizer)
        with self._noting("the optimizer's settings"):
            begun["settings"] = facts.settings(optimizer) | self._scale

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        begun = self._begun.pop(optimizer, None)
        if begun is None:
            return
        if not (self._random or self._losses or facts.has_gradients(optimizer)):
            # `get_optimizer_state_dict` and Horovod make a state by such a step, which is none of the training.
            return
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = self._known
            self._known += 1
        self._count += 1
        with self._noting("random numbers"):
            later = facts.random_numbers()
            begun["random"] = self._random or later
            begun["draws"] = any(later[name] != was for name, was in begun["random"].items() if name in facts.DEVICES)
        with self._noting("samples"):
            if not self._random:
                raise TypeError("no module was called since the last step")
            begun["samples"] = [text for _, digests in self._calls for text in facts.texts(digests)]
        with self._noting("outputs"):
            outputs = sorted(facts.numbers(self._outputs))
            begun["outputs"] = facts.hashed(repr(outputs)) if outputs else ""
        with self._noting("the loss"):
            begun["loss"] = sorted(float(loss) for loss in self._losses)
        if any(thread != threading.get_ident() for thread, _ in self._calls):
            # Microbatches of several threads come in no order.
            begun.get("samples", []).sort()
        rank, ranks = _place()
        begun |= {"batches": self._batches, "missing": [*self._missing]}
        step = Step(self._count, self._optimizers[optimizer], ranks, **begun)
        self._clear()
        self._send(step, rank)


def _trains() -> bool:
    """Say whether a module that is called now belongs to the training.

    Neither a recomputation inside a backward does, nor the step that measures a model before it is partitioned.
    """
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1 and is_counting()


def _waiting(iterator: Any) -> deque[Any]:
    """Return the indices that an iterator has drawn, and whose batches it has not given; of this epoch."""
    own = vars(iterator)
    if own.get("_herringbone_epoch") is not iterator._sampler_iter:
        own["_herringbone_epoch"], own["_herringbone_waiting"] = iterator._sampler_iter, deque()
    waiting: deque[Any] = own["_herringbone_waiting"]
    return waiting


def _place() -> tuple[int | None, int]:
    """Return this process's rank and the number of ranks: the script may have started ranks of its own."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.get_rank(), dist.get_world_size()
    return place()
