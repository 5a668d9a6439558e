"""Shares the modules of a model between the ranks of a tensor group, by the style of each module.

[1] `_wanted`         which module shares which of its parameters, and along which dimension
[2] `_check`          sizes and heads that the ranks cannot share are refused by name
[3] `Storage.keep`    each parameter becomes what this rank keeps of it
[4] `become`          the modules read local tensors and exchange what they lack
[5] `localise`        attributes with numbers of heads count those of this rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.heads import check_heads, localise
from herringbone_parallel.torch.tensor_parallel.layers import Reader, Running, become, forward_of, is_conv1d
from herringbone_parallel.torch.tensor_parallel.operations import enter, gather, gather_mean, regroup
from herringbone_parallel.torch.tensor_parallel.plans import Kind, Style
from herringbone_parallel.torch.tensor_parallel.storage import Cut, Storage

_COLWISE = (Kind.COLWISE, Kind.COLWISE_GATHER, Kind.PACKED_COLWISE)
_ROWWISE = (Kind.ROWWISE, Kind.ROWWISE_TAKE)
_PACKED_IN_ATTENTION = ("in_proj_weight", "in_proj_bias")


@dataclass(frozen=True)
class Shared:
    """A parameter of a module, by its name there: how the ranks share it."""

    module: nn.Module
    path: str
    name: str
    style: Style
    # None: every rank has all of it.
    dim: int | None

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter in the module now."""
        parameter = self.module._parameters[self.name]
        assert parameter is not None
        return parameter


def share(
    model: nn.Module, styles: Mapping[str, Style], storage: Storage, *, replicated: bool = True
) -> dict[int, tuple[nn.Parameter, Cut]]:
    """Share the modules, in place, and return each parameter that is kept, with its cut, by its identity.

    With `replicated`, modules without a style hand their parameters to the storage, too. Raises `ParallelError` for a
    style that a module cannot have.
    """
    modules = _styled(model, styles)
    entries = _without_odd_vocabularies(list(_wanted(modules)), storage.peers.degree)
    dims = _agreed(entries)
    check_heads(model, {path: style for path, (_, style) in modules.items()}, storage.peers.degree)
    for entry in entries:
        _check(entry, storage.peers.degree)
    kept: dict[int, tuple[nn.Parameter, Cut]] = {}
    new: dict[int, nn.Parameter] = {}
    for entry in entries:
        old, dim = entry.parameter, dims[id(entry.parameter)]
        if id(old) not in new and (dim is not None or replicated):
            shape = tuple(old.shape)
            new[id(old)] = storage.keep(old, dim)
            kept[id(new[id(old)])] = (new[id(old)], Cut(shape, dim))
    by_module: dict[int, list[Shared]] = {}
    for entry in entries:
        by_module.setdefault(id(entry.module), []).append(entry)
    running = Running()
    for shared in by_module.values():
        _share_module(shared, new, dims, storage, running)
    for module in model.modules():
        # Modules without parameters, whose code may read those of others.
        if id(module) not in by_module and type(module).forward is not nn.Module.forward:
            become(module, {}, running)
    localise(model, {entry.path: entry.style for entry in entries}, storage.peers)
    return kept


def _styled(model: nn.Module, styles: Mapping[str, Style]) -> dict[str, tuple[nn.Module, Style]]:
    """Return each module once, by its first name, with its style; the default is that every rank has all of it."""
    by_id = {id(model.get_submodule(path)): style for path, style in styles.items()}
    result: dict[str, tuple[nn.Module, Style]] = {}
    for path, module in model.named_modules():
        style = by_id.get(id(module), Style(Kind.REPLICATED))
        if isinstance(module, nn.Embedding) and style.kind in (Kind.ROWWISE, Kind.COLWISE):
            of_embedding = {Kind.ROWWISE: Kind.EMBEDDING_ROWWISE, Kind.COLWISE: Kind.COLWISE_GATHER}
            style = replace(style, kind=of_embedding[style.kind])
        if isinstance(module, nn.MultiheadAttention) and style.kind is Kind.ATTENTION:
            by_id[id(module.out_proj)] = Style(Kind.ROWWISE)
        result[path] = (module, style)
    return result


def _wanted(modules: Mapping[str, tuple[nn.Module, Style]]) -> Iterator[Shared]:
    for path, (module, style) in modules.items():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield Shared(module, path, name, style, _dim(module, path, name, style.kind))
        if not module._parameters and style.kind not in (Kind.REPLICATED, Kind.REPLICATED_SUM):
            raise ParallelError(
                f"{path!r}, a {type(module).__name__}, has no parameters of its own, so the ranks cannot share it"
                f" {style.kind.value}: name the layers inside it in the tensor-parallel plan"
            )


def _dim(module: nn.Module, path: str, name: str, kind: Kind) -> int | None:
    """Return the dimension along which the ranks share the parameter; None if every rank has all of it."""
    if kind in (Kind.REPLICATED, Kind.REPLICATED_SUM):
        return None
    if isinstance(module, nn.Linear) or is_conv1d(module):
        output_dim = 1 if is_conv1d(module) else 0
        if kind in _COLWISE:
            return output_dim if name == "weight" else 0
        if kind in _ROWWISE:
            return 1 - output_dim if name == "weight" else None
    if isinstance(module, nn.Embedding):
        if kind is Kind.EMBEDDING_ROWWISE:
            return 0
        if kind in (Kind.EMBEDDING_HEADS, Kind.COLWISE_GATHER):
            return 1
    if isinstance(module, nn.MultiheadAttention) and kind is Kind.ATTENTION:
        return 0
    raise ParallelError(
        f"{path!r} is a {type(module).__name__}, which cannot have the tensor-parallel style {kind.value}. Linear"
        " layers and Conv1D have the colwise and rowwise ones, nn.Embedding embedding_rowwise and colwise,"
        " nn.MultiheadAttention attention; every module can be replicated"
    )


def _without_odd_vocabularies(entries: list[Shared], degree: int) -> list[Shared]:
    """Leave a vocabulary whole that the ranks cannot divide, if the user has not asked for its division.

    An embedding that shares its weight with a planned head is planned, too.
    """
    heads = {id(e.parameter) for e in entries if e.style.kind in (Kind.COLWISE, Kind.COLWISE_GATHER) and e.dim == 0}
    vocabulary = (Kind.EMBEDDING_ROWWISE, Kind.COLWISE_GATHER)
    odd = {
        id(e.parameter)
        for e in entries
        if e.style.optional and e.style.kind in vocabulary and e.dim is not None and e.parameter.shape[e.dim] % degree
    }
    # The bias of a head goes with its weight.
    odd_modules = {id(e.module) for e in entries if id(e.parameter) in odd}
    result = []
    for entry in entries:
        if id(entry.module) in odd_modules:
            result.append(replace(entry, style=Style(Kind.REPLICATED), dim=None))
        elif isinstance(entry.module, nn.Embedding) and entry.dim is None and id(entry.parameter) in heads - odd:
            result.append(replace(entry, style=Style(Kind.EMBEDDING_ROWWISE), dim=0))
        else:
            result.append(entry)
    return result


def _agreed(entries: list[Shared]) -> dict[int, int | None]:
    """Return the dimension of each parameter by its identity; modules that share one must share it alike."""
    dims: dict[int, int | None] = {}
    owners: dict[int, Shared] = {}
    for entry in entries:
        key = id(entry.parameter)
        if entry.dim is not None and key in owners and owners[key].dim != entry.dim:
            raise ParallelError(
                f"{owners[key].path!r} and {entry.path!r} have one {entry.name}, and the tensor-parallel plan splits it"
                f" along dimension {owners[key].dim} for the first and {entry.dim} for the second. Give an embedding"
                " embedding_rowwise and its head colwise_gather_output"
            )
        if entry.dim is not None:
            owners[key] = entry
        dims[key] = entry.dim if entry.dim is not None else dims.get(key)
    return dims


def _check(entry: Shared, degree: int) -> None:
    """Raise `ParallelError` for a parameter that the ranks cannot share."""
    if entry.dim is None:
        return
    size = entry.parameter.shape[entry.dim]
    blocks = 3 if entry.name in _PACKED_IN_ATTENTION else entry.style.blocks
    if size % (degree * blocks):
        packed = f" in {blocks} blocks" if blocks > 1 else ""
        raise ParallelError(
            f"tensor_parallel_degree {degree} does not divide {size}{packed}, dimension {entry.dim} of"
            f" {entry.path}.{entry.name}: change the degree or the size, or leave the module out of the plan"
        )
    module = entry.module
    if isinstance(module, nn.Embedding):
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                raise ParallelError(
                    f"the embedding {entry.path!r} has {option}, which looks at the whole embedding: ranks cannot share"
                    f" it. Make it without {option}, or leave it out of the tensor-parallel plan"
                )
    if isinstance(module, nn.MultiheadAttention) and (module.bias_k is not None or module.add_zero_attn):
        raise ParallelError(
            f"the attention {entry.path!r} has add_bias_kv or add_zero_attn, which ranks cannot share: make it without,"
            " or leave it out of the tensor-parallel plan"
        )


def _share_module(
    shared: list[Shared],
    new: Mapping[int, nn.Parameter],
    dims: Mapping[int, int | None],
    storage: Storage,
    running: Running,
) -> None:
    module, style = shared[0].module, shared[0].style
    readers: dict[str, Reader] = {}
    kept: dict[str, nn.Parameter] = {}
    for entry in shared:
        dim = dims[id(entry.parameter)]
        if id(entry.parameter) in new:
            kept[entry.name] = new[id(entry.parameter)]
        whole = storage.local if dim is None else partial(_whole, storage, dim)
        readers[entry.name] = Reader(_inside(entry, dim, storage), whole)
    module._parameters.update(kept)
    become(module, readers, running, forward_of(style.kind, storage.peers))


def _inside(entry: Shared, dim: int | None, storage: Storage) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return how the module's own code reads the parameter."""
    if entry.style.kind is Kind.REPLICATED_SUM:
        return partial(_summed, storage)
    if entry.dim is None and dim is not None:
        # Another module splits this parameter, and this one needs all of it.
        return partial(_whole, storage, dim)
    packed_in_attention = entry.name in _PACKED_IN_ATTENTION and isinstance(entry.module, nn.MultiheadAttention)
    if dim is not None and (entry.style.kind is Kind.PACKED_COLWISE or packed_in_attention):
        return partial(_regrouped, storage, 3 if packed_in_attention else entry.style.blocks, dim)
    return storage.local


def _summed(storage: Storage, parameter: torch.Tensor) -> torch.Tensor:
    return enter(storage.local(parameter), storage.peers)


def _whole(storage: Storage, dim: int, parameter: torch.Tensor) -> torch.Tensor:
    # With different batches, each rank has a gradient of its own for the whole parameter; their mean counts.
    function = gather if storage.same_batch else gather_mean
    return function(storage.local(parameter), storage.peers, dim)


def _regrouped(storage: Storage, blocks: int, dim: int, parameter: torch.Tensor) -> torch.Tensor:
    return regroup(storage.local(parameter), storage.peers, blocks, dim)
