"""Shares the marked modules of a model between the ranks of a tensor group.

[1] `_styles`     each marked layer gets a style: from a plan, or one by one
[2] `_regions`    the layers that a rank cannot compute without the others' activations form regions
[3] `share`       parameters become this rank's parts, of the values of the group's first rank
[4] `put_border`  regions get the batches of all ranks, unless these are the same (`prescaled_batch`)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.tensor.borders import put_border
from herringbone_parallel.torch.model_parallel.tensor.marks import mark_of
from herringbone_parallel.torch.tensor_parallel.operations import Peers
from herringbone_parallel.torch.tensor_parallel.plans import Kind, Style, styles
from herringbone_parallel.torch.tensor_parallel.sharing import share
from herringbone_parallel.torch.tensor_parallel.storage import Cut, LocalTensors

# The class attribute with the plan of one of our distributed layers.
PLAN_ATTRIBUTE = "tensor_parallel_plan"
_TORCH_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
# Styles whose modules take and return whole activations by themselves.
_ALONE = (Kind.COLWISE_GATHER, Kind.ROWWISE_TAKE, Kind.EMBEDDING_ROWWISE, Kind.ATTENTION)


@dataclass
class SharedModel:
    """The part of a model that a tensor group shares.

    `cuts` are the cuts of this rank's parameters by their names, `modules` the names of the regions, and `scaled` the
    names of the parameters in regions that compute on the batches of all ranks.
    """

    peers: Peers
    cuts: dict[str, Cut] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    scaled: set[str] = field(default_factory=set)


def distribute(model: nn.Module, peers: Peers, *, same_batch: bool) -> SharedModel:
    """Share the marked modules of a model, in place; every rank of the tensor group must call it."""
    _take_first_ranks_values(model, peers)
    shared = SharedModel(peers)
    planned = dict(_divisible(model, _styles(model), peers.degree))
    if not planned:
        return shared
    planned |= _tied_embeddings(model, planned)
    # With the same batch everywhere, the layers exchange all that they need by themselves.
    shared.modules = sorted(planned) if same_batch else sorted(set(_regions(model, planned)))
    kept = share(model, planned, LocalTensors(peers, same_batch=same_batch), replicated=False)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in kept and kept[id(parameter)][1].dim is not None:
            shared.cuts[name] = kept[id(parameter)][1]
    for path in shared.modules:
        region = model.get_submodule(path)
        if not same_batch:
            put_border(region, peers)
            start = f"{path}." if path else ""
            shared.scaled |= {start + name for name, _ in region.named_parameters()}
    return shared


def _take_first_ranks_values(model: nn.Module, peers: Peers) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in (*model.parameters(), *model.buffers()):
            if not tensor.is_meta:
                values = tensor.detach().contiguous()
                dist.broadcast(values, peers.ranks[0], group=peers.group)
                tensor.detach().copy_(values)


def _styles(model: nn.Module) -> dict[str, Style]:
    """Return the styles of the marked layers: [1]."""
    result: dict[str, Style] = {}
    try:
        plan: Mapping[str, Style] = styles(model)
    except ParallelError:
        # The model has no plan. Its layers are shared one by one.
        plan = {}
    for path, module in model.named_modules():
        own = getattr(type(module), PLAN_ATTRIBUTE, None)
        start = f"{path}." if path else ""
        if own is not None:
            # One of our distributed layers, which the user has put into the model.
            for name, text in own.items():
                result[start + name if name else path] = Style.parse(text, start + name, optional=True)
        elif path in plan and mark_of(module).enabled:
            result[path] = plan[path]
    inside = list(result)
    for path, module in model.named_modules():
        free = not any(path == other or path.startswith(f"{other}.") for other in inside)
        single = type(module) in (nn.Linear, nn.Embedding) and path not in plan and mark_of(module).enabled
        if single and free and not _in_planned_block(path, plan):
            result[path] = Style(Kind.COLWISE_GATHER)
    return result


def _in_planned_block(path: str, plan: Mapping[str, Style]) -> bool:
    """Say whether the plan shares other layers of the same block, and leaves this one whole on purpose."""
    block = _block_of(path)
    return bool(block) and any(name.startswith(f"{block}.") for name in plan)


def _divisible(model: nn.Module, planned: Mapping[str, Style], degree: int) -> Iterator[tuple[str, Style]]:
    """Leave out layers that are shared one by one and cannot be, as SMP v1 does."""
    users: Counter[int] = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    for path, style in planned.items():
        module = model.get_submodule(path)
        if style.kind is Kind.COLWISE_GATHER and not style.optional and type(module) in (nn.Linear, nn.Embedding):
            weight = module._parameters["weight"]
            assert weight is not None
            if weight.shape[0 if type(module) is nn.Linear else 1] % degree or users[id(weight)] > 1:
                continue
        yield path, style


def _tied_embeddings(model: nn.Module, planned: Mapping[str, Style]) -> dict[str, Style]:
    """Return the other embeddings of a vocabulary that the plan shares: they need the batches of all ranks as well."""
    vocabulary = (Kind.EMBEDDING_ROWWISE, Kind.COLWISE_GATHER)
    weights = {
        id(module._parameters.get("weight"))
        for module, style in ((model.get_submodule(path), style) for path, style in planned.items())
        if style.kind is Kind.EMBEDDING_ROWWISE or (style.kind in vocabulary and isinstance(module, nn.Linear))
    }
    return {
        path: Style(Kind.EMBEDDING_ROWWISE, optional=True)
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and path not in planned and id(module.weight) in weights
    }


def _regions(model: nn.Module, planned: Mapping[str, Style]) -> Iterator[str]:
    """Yield the names of the regions: [2]."""
    for path, style in planned.items():
        ancestors = _ancestors(path)
        own = [name for name in ancestors if hasattr(type(model.get_submodule(name)), PLAN_ATTRIBUTE)]
        # torch's Transformer layers mix shared layers with code of their own.
        own += [name for name in ancestors if isinstance(model.get_submodule(name), _TORCH_LAYERS)]
        block = own[0] if own else _block_of(path)
        if block and (own or _is_shared(block, planned)):
            yield block
        elif style.kind in _ALONE:
            yield path
        else:
            raise ParallelError(
                f"the layer {path!r}, which the plan shares {style.kind.value}, is in no block of an nn.ModuleList or"
                " nn.Sequential: the ranks would not know where their batches come together. Set `prescaled_batch`, or"
                " put the layers that belong together into one"
            )


def _is_shared(block: str, planned: Mapping[str, Style]) -> bool:
    return any(name.startswith(f"{block}.") and style.kind not in _ALONE for name, style in planned.items())


def _ancestors(path: str) -> list[str]:
    """Return the names of the modules that contain a module, and its own, the outermost first."""
    parts = path.split(".")
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _block_of(path: str) -> str:
    """Return the outermost module above with a number for a name: an element of a list of layers. "" if none is."""
    for name in _ancestors(path):
        if name.rpartition(".")[2].isdecimal():
            return name
    return ""
