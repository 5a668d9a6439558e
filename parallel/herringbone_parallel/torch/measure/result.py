"""Turn what a recorder has seen into a `Measurement`: one step, with names instead of objects."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from msgspec import structs
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.prediction import measurement as form
from herringbone_parallel.core.prediction.measurement import Kind, Measurement, Phase
from herringbone_parallel.torch.measure.operations import bytes_of
from herringbone_parallel.torch.measure.recorder import Recorder
from herringbone_parallel.torch.measure.records import Allocation, Record
from herringbone_parallel.torch.sharding.units import units
from herringbone_parallel.torch.tensor_parallel.plans import Kind as Split
from herringbone_parallel.torch.tensor_parallel.plans import styles

_SPLITS = {
    Split.COLWISE: "column",
    Split.COLWISE_GATHER: "column",
    Split.PACKED_COLWISE: "column",
    Split.ROWWISE: "row",
    Split.ROWWISE_TAKE: "row",
    Split.EMBEDDING_ROWWISE: "embedding",
    Split.EMBEDDING_HEADS: "column",
    Split.ATTENTION: "column",
}


@dataclass
class Facts:
    """The facts about a script that are not in its operations."""

    device: str = "cpu"
    ranks: int = 1
    wrapper: str = ""
    # The moment and the samples of each batch that a loader of the script made.
    batches: list[tuple[int, int | None]] = field(default_factory=list)
    batch_divides: bool = False
    # Of one batch.
    data_seconds: float = 0.0
    data_workers: int = 0
    epoch_samples: int | None = None
    tree: CostTree | None = None
    # The modules that the script has given to `fully_shard`, by identity, and those that checkpoint their activations.
    units: set[int] = field(default_factory=set)
    # The parameter of each copy that an optimizer trains instead, both by identity.
    masters: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Names:
    """The modules of the measurement: the main model first, then other models of the script."""

    modules: list[form.Module]
    # By identity of a module.
    numbers: dict[int, int]
    roots: list[tuple[int, nn.Module]]


def measurement_of(recorder: Recorder, facts: Facts) -> Measurement:
    """Return the measurement of the last step that the recorder has seen."""
    start, end = _window(recorder, facts)
    if recorder.has_devices and not any(call.module >= 0 for call in recorder.calls[start:end]):
        raise ParallelError(
            "the job has GPUs, and the script trains on none of them: move model and batches there, as in"
            " model.to('cuda'), or take hosts without GPUs"
        )
    names = _names(recorder, start, end, facts)
    number_of = [names.numbers.get(id(module), 0) for module in recorder.modules] + [0]
    fed = {number_of[number] for number in recorder.fed}
    optimizers = {id(step.optimizer): step.optimizer for step in recorder.steps}.values()
    parameters = list(_parameters(names, optimizers, facts.masters))
    owners = _Owners(recorder, names, optimizers, facts.masters)
    calls = recorder.calls[start:end]
    used = sorted({call.operation for call in calls})
    renumbered = {old: new for new, old in enumerate(used)}
    return Measurement(
        framework=f"torch {torch.__version__}",
        device=facts.device,
        ranks=facts.ranks,
        batch=samples(recorder, facts.batches, start, end),
        batch_divides=facts.batch_divides,
        microbatches=1 + max((call.microbatch for call in calls), default=0),
        wrapper=facts.wrapper,
        data_seconds=facts.data_seconds * sum(start <= moment < end for moment, _ in facts.batches),
        data_workers=facts.data_workers,
        epoch_samples=facts.epoch_samples,
        tree=facts.tree,
        modules=tuple(
            structs.replace(module, late=module.unit and number not in fed)
            for number, module in enumerate(names.modules)
        ),
        parameters=tuple(parameters),
        operations=tuple(recorder.operations[old] for old in used),
        calls=tuple(
            form.Call(
                renumbered[call.operation],
                number_of[call.module] if call.owner is None else owners.module(call.owner),
                call.phase,
                call.microbatch,
            )
            for call in calls
        ),
        tensors=(
            *_tensors(recorder, start, end, number_of, owners),
            *(_scratch(recorder, calls, number_of) if facts.device == "cpu" else ()),
        ),
        notes=(*facts.notes, *_fallback_notes(recorder)),
    )


def samples(recorder: Recorder, batches: list[tuple[int, int | None]], start: int, end: int) -> int | None:
    """Return the samples between two moments: those that loaders made, or else those that the busiest module got."""
    loaded = [size for moment, size in batches if start <= moment < end]
    known = [size for size in loaded if size is not None]
    if known and len(known) == len(loaded):
        return sum(known)
    # A loss may be a module, too, and gets the same samples as the model.
    passes: Counter[int] = Counter()
    for moment, module, size in recorder.forwards:
        if start <= moment < end and size is not None:
            passes[module] += size
    return max(passes.values(), default=None)


def _window(recorder: Recorder, facts: Facts) -> tuple[int, int]:
    """Return the moments between which the step lies: a whole turn of the script's loop, if there were two."""
    last = recorder.steps[-1]
    before = [step for step in recorder.steps[:-1] if step.optimizer is last.optimizer]
    if before:
        return _after_evaluation(recorder, facts, before[-1].end, last.end), last.end
    facts.notes.append(
        "the script made one step only, so the optimizer's first step was measured, which makes its state"
    )
    return recorder.prepared, last.end


def _after_evaluation(recorder: Recorder, facts: Facts, start: int, end: int) -> int:
    """Return the moment from which on batches are trained with: a loop may evaluate between two steps."""
    loaded = [moment for moment, _ in facts.batches if start <= moment < end]
    for batch, following in pairwise(loaded):
        forwards = {moment for moment, _, _ in recorder.forwards if batch <= moment < following}
        # Without a forward, a step has batches of several loaders.
        if not forwards or forwards & recorder.recorded:
            break
        start = following
    return start


def _names(recorder: Recorder, start: int, end: int, facts: Facts) -> _Names:
    called = {number for moment, number, _ in recorder.forwards if start <= moment < end}
    called |= {call.module for call in recorder.calls[start:end] if call.module >= 0}
    return names_of([recorder.modules[number] for number in sorted(called)], facts)


def names_of(called: list[nn.Module], facts: Facts) -> _Names:
    """Return the names of all modules of the models that hold those which ran in a step."""
    roots = _roots(called)
    if not roots:
        raise ParallelError("no module of the script ran in the step: a prediction needs a model of torch.nn.Module")
    names = _Names([], {}, [])
    for index, root in enumerate(roots):
        prefix = "" if index == 0 else _free_name(type(root).__name__, names)
        names.roots.append((len(names.modules), root))
        _add(names, root, prefix, facts)
    return names


def _roots(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the outermost modules that hold any of these, without wrappers, the one with most parameters first."""
    everything = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    parents: dict[int, nn.Module] = {}
    for module in everything:
        for child in vars(module).get("_modules", {}).values():
            if child is not None:
                parents.setdefault(id(child), module)
    roots: dict[int, nn.Module] = {}
    for module in modules:
        root, seen = module, {id(module)}
        while id(root) in parents and id(parents[id(root)]) not in seen:
            root = parents[id(root)]
            seen.add(id(root))
        root = unwrapped(root)
        if any(True for _ in root.parameters()):
            roots[id(root)] = root
    return sorted(roots.values(), key=lambda root: -sum(parameter.numel() for parameter in root.parameters()))


_WRAPPERS = (
    "OptimizedModule",
    "DistributedDataParallel",
    "DistributedModel",
    "FullyShardedDataParallel",
    "DataParallel",
)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the model inside wrappers that train it on several ranks."""
    while type(module).__name__ in _WRAPPERS:
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module


def _free_name(name: str, names: _Names) -> str:
    taken = {module.path.partition(".")[0] for module in names.modules}
    return next(free for free in (name, *(f"{name}{number}" for number in range(2, 1000))) if free not in taken)


def _add(names: _Names, root: nn.Module, prefix: str, facts: Facts) -> None:
    try:
        splits = {path: _SPLITS.get(style.kind, "") for path, style in styles(root).items()}
    except ParallelError:
        splits = {}
    own = facts.units & {id(module) for module in root.modules()}
    blocks = own or {id(module) for module in units(root).values()}
    for path, module in root.named_modules():
        names.numbers[id(module)] = len(names.modules)
        full = ".".join(filter(None, (prefix, path)))
        checkpoint = id(module) in blocks and module is not root
        names.modules.append(
            form.Module(full, type(module).__name__, splits.get(path, ""), id(module) in blocks, checkpoint)
        )


def _parameters(
    names: _Names, optimizers: Iterable[torch.optim.Optimizer], masters: dict[int, int]
) -> Iterator[form.Parameter]:
    state_of: dict[int, int] = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, torch.Tensor) and isinstance(state, dict):
                held = sum(bytes_of(entry) for entry in state.values() if torch.is_tensor(entry))
                copy = bytes_of(parameter) if id(parameter) in masters else 0
                state_of[masters.get(id(parameter), id(parameter))] = held + copy
    owners: dict[int, list[int]] = {}
    named: dict[int, tuple[str, nn.Parameter]] = {}
    for first, root in names.roots:
        prefix = names.modules[first].path
        for path, module in root.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    owners.setdefault(id(parameter), []).append(names.numbers[id(module)])
                    full = ".".join(filter(None, (prefix, path, name)))
                    named.setdefault(id(parameter), (full, parameter))
    for identity, (name, parameter) in named.items():
        yield form.Parameter(
            name=name,
            module=owners[identity][0],
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            bytes=bytes_of(parameter),
            trainable=parameter.requires_grad,
            state_bytes=state_of.get(identity, 0),
            shared_by=tuple(owners[identity][1:]),
        )


class _Owners:
    """The kinds of allocations and the modules that own them."""

    def __init__(
        self,
        recorder: Recorder,
        names: _Names,
        optimizers: Iterable[torch.optim.Optimizer],
        masters: dict[int, int],
    ) -> None:
        # By identity of an allocation: those that the model and the optimizers hold.
        self._held: dict[int, tuple[Kind, int]] = {}
        # By identity of a parameter.
        self._modules: dict[int, int] = {}
        for _, root in names.roots:
            for module in root.modules():
                number = names.numbers[id(module)]
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._modules.setdefault(id(parameter), number)
                        self._hold(recorder.allocation(parameter), Kind.PARAMETER, number)
                for buffer in module._buffers.values():
                    if buffer is not None:
                        self._hold(recorder.allocation(buffer), Kind.BUFFER, number)
        for copy, identity in masters.items():
            self._modules[copy] = self._modules.get(identity, 0)
        for optimizer in optimizers:
            for trained, state in optimizer.state.items():
                for entry in (trained, *state.values()) if isinstance(state, dict) else ():
                    if isinstance(entry, torch.Tensor):
                        # A parameter of the model is held already; here it is a copy.
                        self._hold(recorder.allocation(entry), Kind.STATE, self._modules.get(id(trained), 0))

    def _hold(self, allocation: Allocation | None, kind: Kind, module: int) -> None:
        if allocation is not None:
            self._held.setdefault(id(allocation), (kind, module))

    def held(self, allocation: Allocation) -> tuple[Kind, int] | None:
        """Return kind and module of an allocation of the model, the optimizers or a gradient; None for others."""
        if allocation.gradient is not None and id(allocation) not in self._held:
            return Kind.GRADIENT, self._modules.get(allocation.gradient, 0)
        return self._held.get(id(allocation))

    def module(self, owner: Allocation | int) -> int:
        """Return the module that owns a parameter, given by its identity, or what an allocation was computed from."""
        if isinstance(owner, int):
            return self._modules.get(owner, 0)
        held = self.held(owner)
        while held is None and owner.parent is not None:
            owner = owner.parent
            held = self.held(owner)
        return 0 if held is None else held[1]


def _tensors(recorder: Recorder, start: int, end: int, number_of: list[int], owners: _Owners) -> Iterator[form.Tensor]:
    backwards = [moment for moment in range(start, end) if recorder.calls[moment].phase is Phase.BACKWARD]
    for allocation in recorder.allocations:
        freed = allocation.freed
        elsewhere = recorder.has_devices and not allocation.on_device
        if allocation.born >= end or 0 <= freed <= start or not allocation.bytes or elsewhere:
            continue
        held = owners.held(allocation)
        if held is not None:
            kind, module = held
        else:
            # An allocation of the last step is what one of this step will be in the next.
            next_backward = bisect_left(backwards, allocation.born)
            kind = _kind(allocation, backwards[next_backward] if next_backward < len(backwards) else end)
            module = number_of[allocation.module] if allocation.parent is None else owners.module(allocation.parent)
        yield form.Tensor(
            bytes=allocation.bytes,
            kind=kind,
            born=-1 if allocation.born < start else allocation.born - start,
            freed=-1 if freed < 0 or freed > end else freed - start,
            module=module,
            microbatch=allocation.microbatch,
        )


def _scratch(recorder: Recorder, calls: list[Record], number_of: list[int]) -> Iterator[form.Tensor]:
    """Yield the memory that operations hold while they run, as tensors of one moment."""
    scratch = recorder.scratch.bytes_of({call.operation for call in calls})
    for moment, call in enumerate(calls):
        size = scratch.get(call.operation, 0)
        if size:
            yield form.Tensor(size, Kind.TEMPORARY, moment, moment + 1, number_of[call.module], call.microbatch)


def _kind(allocation: Allocation, backward: int) -> Kind:
    if allocation.is_input or allocation.phase is Phase.DATA:
        return Kind.INPUT
    if allocation.phase is Phase.FORWARD and not 0 <= allocation.freed <= backward:
        return Kind.ACTIVATION
    return Kind.TEMPORARY


def _fallback_notes(recorder: Recorder) -> Iterator[str]:
    for name, times in recorder.skipper.fallbacks.items():
        yield f"{name} has no shape computation, so it ran for real, {times} time{'s' * (times != 1)}"
