"""Serve version 1 of model parallelism with one rank that holds the whole model, and measure its costs as it does.

The first step of a job with a pipeline measures the model, to partition it. The same measurement runs here, on tensors
without values, so a prediction decides on the same partition as the job.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.work import CPU, CUDA
from herringbone_parallel.torch.measure.recorder import Recorder
from herringbone_parallel.torch.measure.replacing import nothing, replaced
from herringbone_parallel.torch.measure.result import Facts


@contextmanager
def whole_model(recorder: Recorder | None, facts: Facts) -> Iterator[None]:
    """Serve the library in the `with` block; without costs of the modules, `facts` gets them at the first step."""
    from herringbone_parallel.torch.model_parallel import model, state

    settle = model.DistributedModel.settle

    def measured(self: Any, run: state.TrialRun) -> None:
        facts.wrapper = "smp"
        library = state.get()
        for wrapper in library.optimizers:
            _note_masters(facts, wrapper)
        if facts.tree is None and recorder is not None:
            with recorder.quiet():
                facts.tree = _costs(library, self.module, run, facts)
        settle(self, run)

    with (
        replaced(model.DistributedModel, settle=measured),
        # Replicas average by themselves; without their group, each gradient stays as it is.
        replaced(state, open_reduction_group=nothing),
    ):
        yield


def _costs(library: Any, module: torch.nn.Module, run: Any, facts: Facts) -> CostTree:
    from herringbone_parallel.torch.model_parallel.placement.measure import Live, measure, optimizer_state_of

    states: dict[int, float] = {}
    for wrapper in library.optimizers:
        states |= optimizer_state_of([wrapper.optimizer], masters=wrapper.scales)
    rates = CUDA if facts.device == "cuda" else CPU
    library.tracing = True
    try:
        # Of one microbatch: a layout has as many as its schedule keeps live.
        return measure(
            module, functools.partial(run, torch.device("cpu")), rates, Live(microbatches=1, state_of=states)
        )
    finally:
        library.tracing = False


def _note_masters(facts: Facts, wrapper: Any) -> None:
    for group in wrapper.optimizer.param_groups:
        for tensor in group["params"]:
            parameter = wrapper.parameter_of(tensor)
            if parameter is not tensor:
                facts.masters[id(tensor)] = id(parameter)
