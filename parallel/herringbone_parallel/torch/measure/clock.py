"""Time the steps of a script that computes for real, and in every other step the part of each module.

    clock = Clock(on_step)
    with clock.watching():
        run_the_script()
    clock.steps[-1].seconds

At each moment the time belongs to one owner: a part of the step, and the module whose code runs. A module gets the time
from its begin to its end, but for the modules that it calls. In a backward a module gets the time from the moment at
which the gradient of its result is there to the moment at which the gradient of an argument or of another result is:

    forward     enter block    enter fc    leave fc    leave block
    backward    gradient of block's result    of fc's result    of fc's argument: code of block again
"""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from herringbone_parallel.torch.measure.operations import tensors_of
from herringbone_parallel.torch.measure.records import Modules
from herringbone_parallel.torch.measure.replacing import replaced


class Part(IntEnum):
    """A part of a step. `DATA` is the wait for a batch of a loader."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    DATA = 3


class Owner(NamedTuple):
    """The part, and the index of the module in `Clock.modules`; -1 for code outside of all modules."""

    part: Part
    module: int = -1


@dataclass
class Step:
    """The seconds of one turn of the script's loop, from the return of an optimizer step to that of the next one.

    `seconds` are those of each owner, by the clock that the user of `Clock` gave. `elapsed_s` is the time by the clock
    on the wall, `processor_s` that of the processor, `thread_s` that of the main thread alone, all without the waits
    for batches, which are `data_s`. `detailed` is True for a step in which modules were told apart.
    """

    detailed: bool
    seconds: defaultdict[Owner, float] = field(default_factory=lambda: defaultdict(float))
    elapsed_s: float = 0.0
    processor_s: float = 0.0
    thread_s: float = 0.0
    data_s: float = 0.0

    def part_s(self, part: Part) -> float:
        """Return the seconds of a part."""
        return sum(seconds for owner, seconds in self.seconds.items() if owner.part is part)


def _moment() -> NDArray[np.float64]:
    """Return the seconds of the clock on the wall, of the processor, and of this thread alone."""
    return np.array([time.perf_counter(), time.process_time(), time.thread_time()])


_NODE = "herringbone_owner"


class Clock:
    """Watches a script. `on_step` is called at the end of each step of its optimizer; it may end the script.

    If `detailed`, every other step tells modules apart, which takes time of its own.
    """

    def __init__(
        self, on_step: Callable[[], object], now: Callable[[], float] = time.perf_counter, *, detailed: bool = True
    ) -> None:
        self.steps: list[Step] = []
        self.modules = Modules()
        self._on_step, self._now, self._detailed = on_step, now, detailed
        self._owner, self._step = Owner(Part.FORWARD), Step(detailed=False)
        # The moments at which the owner changed and the step began, the latter by all clocks.
        self._since, self._began = 0.0, np.zeros(3)
        self._optimizing = 0
        # A turn of a loop with several optimizers ends with the first one's step. These are the others of this turn.
        self._first: weakref.ref[torch.optim.Optimizer] | None = None
        self._others: set[int] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time what runs in the `with` block."""
        call, backward, advance = nn.Module.__call__, torch.autograd.backward, _BaseDataLoaderIter.__next__
        clock = self

        def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return clock._called(call, self, args, kwargs) if clock._step.detailed else call(self, *args, **kwargs)

        def ran_backward(*args: Any, **kwargs: Any) -> Any:
            with clock._owned(Owner(Part.BACKWARD)):
                return backward(*args, **kwargs)

        def advanced(self: Any) -> Any:
            begin = _moment()
            try:
                with clock._owned(Owner(Part.DATA)):
                    return advance(self)
            finally:
                waited = _moment() - begin
                clock._step.data_s += float(waited[0])
                clock._began += waited

        with ExitStack() as stack:
            stack.enter_context(replaced(nn.Module, __call__=called))
            stack.enter_context(replaced(torch.autograd, backward=ran_backward))
            stack.enter_context(replaced(_BaseDataLoaderIter, __next__=advanced))
            stack.callback(register_optimizer_step_pre_hook(self._begin_update).remove)
            stack.callback(register_optimizer_step_post_hook(self._end_update).remove)
            self._begin()
            yield

    def _begin(self) -> None:
        """Begin a step."""
        self._step = Step(detailed=self._detailed and len(self.steps) % 2 == 1)
        self._owner = Owner(Part.FORWARD)
        self._since, self._began = self._now(), _moment()

    def _switch(self, owner: Owner) -> Owner:
        """Give the time from now on to another owner; return the one before."""
        now, before = self._now(), self._owner
        self._step.seconds[before] += now - self._since
        self._owner, self._since = owner, now
        return before

    @contextmanager
    def _owned(self, owner: Owner) -> Iterator[None]:
        before = self._switch(owner)
        try:
            yield
        finally:
            self._switch(before)

    def _called(self, call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        in_backward = torch._C._current_autograd_node() is not None
        owner = Owner(Part.BACKWARD if in_backward else Part.FORWARD, self.modules.number(module))
        self._mark((args, kwargs), self._owner.module)
        with self._owned(owner):
            result = call(module, *args, **kwargs)
        self._mark(result, owner.module)
        return result

    def _mark(self, tensors: Any, module: int) -> None:
        """Give the time of a backward to a module as soon as the gradient of one of these tensors is there."""
        for tensor in tensors_of(tensors):
            node: Any = tensor.grad_fn
            # The first mark of a node is that of the innermost module.
            if node is not None and _NODE not in node.metadata:
                node.metadata[_NODE] = module
                node.register_prehook(partial(self._reached, Owner(Part.BACKWARD, module)))

    def _reached(self, owner: Owner, _: Any) -> None:
        self._switch(owner)

    def _begin_update(self, *_: Any) -> None:
        if not self._optimizing:
            self._switch(Owner(Part.OPTIMIZER))
        self._optimizing += 1

    def _end_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizing -= 1
        if self._optimizing:
            return
        self._switch(Owner(Part.FORWARD))
        # A library may make its optimizer again after the first step: the one that comes twice in a turn is the first.
        if self._first is None or id(optimizer) in self._others:
            self._first = weakref.ref(optimizer)
        if self._first() is not optimizer:
            self._others.add(id(optimizer))
            return
        self._others.clear()
        step, took = self._step, _moment() - self._began
        step.elapsed_s, step.processor_s, step.thread_s = took.tolist()
        self.steps.append(step)
        self._on_step()
        self._begin()
