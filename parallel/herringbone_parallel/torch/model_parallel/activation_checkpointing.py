"""Activation checkpointing: drop a module's intermediate results after the forward; recompute them for the backward.

The recomputation happens on the rank that runs the module, inside the graph of one call. A module whose parts live on
several ranks has no graph of its own, so each part is checkpointed on its rank. The same holds for a function that code
on every rank passes to `torch.utils.checkpoint.checkpoint`. torch itself would run such a function again only on the
ranks that miss a tensor, and these would wait for the others forever.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.utils.checkpoint
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.library_hooks import GENERATOR
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.placement.placement import Home
from herringbone_parallel.torch.model_parallel.runtime import microbatch

if TYPE_CHECKING:
    from herringbone_parallel.torch.offloading.tasks import TaskOffloading

_EACH, _CONTIGUOUS = "each", "contiguous"
# The attribute of a module that is checkpointed already.
_CHECKPOINTED = "_smp_checkpointed"


class _Unit(NamedTuple):
    """Children of an `nn.Sequential` that are checkpointed as one; `home` is None for a child that is split itself."""

    home: Home | None
    children: list[nn.Module]


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = _EACH,
) -> None:
    """Checkpoint every call of a module from now on; gradients stay the same.

        smp.set_activation_checkpointing(model.module.layers, strategy="group_2")

    For an `nn.Sequential`, `strategy` names the unit that is recomputed together: "each" child, all children that are
    "contiguous" on one rank, or "group_N" of N children on one rank. `preserve_rng_state` repeats dropout's random
    numbers. Tuples pass between children as without checkpointing, so `pack_args_as_tuple`, which SMP v1 needs for
    them, has no effect. Raises `ParallelError` for an unknown strategy, or for one that the module cannot have.
    """
    limit = _limit(module, strategy)
    # A second wrapper would recompute inside the recomputation.
    if module.__dict__.get(_CHECKPOINTED):
        return
    module.__dict__[_CHECKPOINTED] = True
    forward = module.forward

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if isinstance(module, nn.Sequential):
            return _run_sequential(module, limit, preserve_rng_state, *args, **kwargs)
        if not _on_every_rank():
            return _recomputed(forward, preserve_rng_state, *args, **kwargs)
        # The module is split. Its children are checkpointed in their turn, down to modules of one rank. This happens
        # here and not at once, because homes exist only after the partition.
        for child in module.children():
            set_activation_checkpointing(child, preserve_rng_state, pack_args_as_tuple)
        return forward(*args, **kwargs)

    module.forward = checkpointed


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True) -> Any:
    """Call a module once, checkpointed.

        hidden = smp.checkpoint(self.block, hidden, mask)

    Raises `ParallelError` for an argument that is no module. Source: SMP v1, `patches.checkpoint.checkpoint`.
    """
    if not isinstance(module, nn.Module):
        raise ParallelError(
            f"smp.checkpoint takes a module and its arguments, not {module!r}; put the code in a module"
        )
    if not _on_every_rank():
        return _recomputed(module, preserve_rng_state, *args)
    home = module.__dict__.get(microbatch.HOME_ATTRIBUTE)
    if home is None:
        set_activation_checkpointing(module, preserve_rng_state)
        return module(*args)
    return _call_at_home(home, partial(_recomputed, module, preserve_rng_state), *args)


def checkpoint_sequential(
    sequential: nn.Sequential,
    input: Any,
    strategy: str = _EACH,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,  # noqa: ARG001  SMP v1's signature; see set_activation_checkpointing
) -> Any:
    """Call an `nn.Sequential` once, checkpointed in the units of `set_activation_checkpointing`.

    hidden = smp.checkpoint_sequential(self.layers, hidden, strategy="contiguous")
    """
    if not isinstance(sequential, nn.Sequential):
        raise ParallelError(f"smp.checkpoint_sequential takes an nn.Sequential, not a {type(sequential).__qualname__}")
    limit = _limit(sequential, strategy)
    home = sequential.__dict__.get(microbatch.HOME_ATTRIBUTE)
    run = partial(_run_sequential, sequential, limit, preserve_rng_state)
    if home is None or not _on_every_rank():
        return run(input)
    return _call_at_home(home, run, input)


def serve_torch() -> None:
    """Make `torch.utils.checkpoint.checkpoint` checkpoint part by part in code that runs on every rank.

    Elsewhere it stays torch's own. Scripts may have imported the function already. So this replaces the two names that
    the function looks up at each call, and not the function.
    """
    setattr(torch.utils.checkpoint, GENERATOR, _without_reentrant)
    torch.utils.checkpoint.CheckpointFunction = _Reentrant  # type: ignore[misc]


_torch_without_reentrant = getattr(torch.utils.checkpoint, GENERATOR)


def _without_reentrant(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    if _on_every_rank():
        # Before torch 2.14 it is the second argument by position.
        with _each_call_checkpointed(kwargs["preserve_rng_state"] if "preserve_rng_state" in kwargs else args[0]):
            yield
        return
    with _offloaded():
        yield from _torch_without_reentrant(function, *args, **kwargs)


class _Reentrant(torch.utils.checkpoint.CheckpointFunction):
    @classmethod
    def apply(cls, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not _on_every_rank():
            with _offloaded():
                return super().apply(function, preserve, *args)  # type: ignore[no-untyped-call]
        with _each_call_checkpointed(preserve):
            return function(*args)


def _offloaded() -> AbstractContextManager[Any]:
    """Return the context manager under which a call's inputs go to host memory, if the job offloads activations."""
    # torch's function stays served after `smp.shutdown`.
    offloading = state.get().offloading if state.is_initialized() else None
    return nullcontext() if offloading is None else offloading.hooks()


@contextmanager
def _each_call_checkpointed(preserve: bool) -> Iterator[None]:
    running = microbatch.current()
    assert running is not None
    before, running.wrap = running.wrap, lambda function: partial(_recomputed, function, preserve)
    try:
        yield
    finally:
        running.wrap = before


def _limit(module: nn.Module, strategy: str) -> int | None:
    """Return the greatest number of children in one unit, None for all neighbours on one rank."""
    grouped = re.fullmatch(r"group_([1-9]\d*)", strategy) if isinstance(strategy, str) else None
    if strategy not in (_EACH, _CONTIGUOUS) and grouped is None:
        raise ParallelError(f"there is no checkpointing strategy {strategy!r}; there are each, contiguous, group_N")
    if strategy != _EACH and not isinstance(module, nn.Sequential):
        raise ParallelError(f"strategy={strategy!r} is for an nn.Sequential, not for a {type(module).__qualname__}")
    if strategy == _CONTIGUOUS:
        return None
    return 1 if grouped is None else int(grouped[1])


def _run_sequential(sequential: nn.Sequential, limit: int | None, preserve: bool, value: Any) -> Any:
    for unit in _units(sequential, limit):
        run = partial(_recomputed, partial(_in_sequence, unit.children), preserve)
        if not _on_every_rank():
            value = run(value)
        elif unit.home is not None:
            value = _call_at_home(unit.home, run, value, children=len(unit.children))
        else:
            # The child is split: its own parts are checkpointed.
            (child,) = unit.children
            set_activation_checkpointing(child, preserve)
            value = child(value)
    return value


def _units(sequential: nn.Sequential, limit: int | None) -> list[_Unit]:
    """Return units of at most `limit` neighbours on one rank; a child that is split is alone."""
    units: list[_Unit] = []
    # On one rank only, all children are here and their homes do not matter.
    split = _on_every_rank()
    for child in sequential:
        home: Home | None = child.__dict__.get(microbatch.HOME_ATTRIBUTE) if split else None
        if units and (limit is None or len(units[-1].children) < limit):
            last = units[-1]
            if not split or (home is not None and last.home is not None and home.rank == last.home.rank):
                last.children.append(child)
                continue
        units.append(_Unit(home, [child]))
    return units


def _on_every_rank() -> bool:
    """Say whether this code runs on every rank of a pipeline, and not inside a module of one rank."""
    # torch's function stays served when `smp.shutdown` has run, so there may be no state.
    if not state.is_initialized() or microbatch.current() is None:
        return False
    library = state.get()
    return library.settings.partitions > 1 and not library.tracing


def _in_sequence(children: Sequence[nn.Module], value: Any) -> Any:
    for child in children:
        value = child(value)
    return value


def _call_at_home(home: Home, function: Callable[..., Any], *args: Any, children: int = 1) -> Any:
    running = microbatch.current()
    assert running is not None
    # Under the module's own name, so that dropout draws the same numbers as without checkpointing.
    identity = (home.path, "checkpointed", children)
    return running.call(home.path, home.rank, function, args, {}, identity)


def _recomputed(function: Callable[..., Any], preserve: bool, *args: Any, **kwargs: Any) -> Any:
    # Not reentrant: torch's reentrant form refuses a backward for some of the inputs, which `zero_bubble` needs.
    return torch.utils.checkpoint.checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=preserve, context_fn=_contexts, **kwargs
    )


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _OwnCode()


class _OwnCode(AbstractContextManager[None]):
    """Mark the recomputation as a module's own code.

    On the CPU, autograd recomputes in the thread of the microbatch's backward. There `current()` would be the
    microbatch, and the operations would be taken for calls of every rank. Entered once for each backward through the
    call.
    """

    def __enter__(self) -> None:
        self._inside = microbatch.inside(None)
        self._inside.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._inside.__exit__(*exception)


def offloading_of_step(library: state.State) -> TaskOffloading | None:
    """Return what keeps this step's activations in host memory; None if the job does not offload them."""
    settings = library.settings
    if not settings.offload_activations:
        return None
    # Only jobs that ask for it load these modules.
    from herringbone_parallel.torch.offloading import tasks

    return tasks.of_step(
        rank=library.pp_rank,
        partitions=settings.partitions,
        microbatches=settings.microbatches,
        pipeline=settings.pipeline,
        active=settings.active_microbatches,
        horizon=settings.activation_loading_horizon,
        device=library.device,
    )


def check_offloading(library: state.State) -> None:
    """Warn after the first backward if the job offloads activations, and this rank has none that can move."""
    # A step without gradients saves nothing.
    if library.offloading is None or library.offloading_checked or not library.backwards:
        return
    library.offloading_checked = True
    if not library.offloading.saved_bytes:
        warnings.warn(
            "offload_activations moves the inputs of checkpointed modules, and this rank has none: call"
            " smp.set_activation_checkpointing(module)",
            stacklevel=5,
        )
