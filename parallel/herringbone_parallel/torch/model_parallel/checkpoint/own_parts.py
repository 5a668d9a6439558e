"""The state that this rank holds of a model and of its optimizer, as pieces of whole tensors. Communicates nothing.

A parameter may be cut twice: a tensor group cuts it along one dimension, and ranks that share the training state cut
the flattened part again.

    whole (shape of the script's model) --tensor group--> part --shards--> a range of the flattened part
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from herringbone_parallel.torch.checkpoint.pieces import Piece, flat_pieces
from herringbone_parallel.torch.model_parallel import local_parts
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer import DistributedOptimizer
from herringbone_parallel.torch.model_parallel.tensor.distribute import SharedModel
from herringbone_parallel.torch.model_parallel.tensor.whole import local_shape


def model_state(model: DistributedModel) -> dict[str, Any]:
    """Return the model's state on this rank, by name: whole tensors, or pieces of them."""
    state: dict[str, Any] = dict(local_parts.with_data(local_parts.state_dict(model.module)))
    if model.shards is not None:
        shards = model.shards.named_shards()
        first_names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        for name, parameter in model.module.named_parameters(remove_duplicate=False):
            # A tied parameter has all its names in the state, and its first one among the shards.
            if name in state and (shard := shards.get(first_names[id(parameter)])) is not None:
                state[name] = flat_pieces(shard.values, shard.start, shard.shape)
    return {name: _located(value, name, model.shared) for name, value in state.items()}


def optimizer_state(optimizer: DistributedOptimizer, model: DistributedModel) -> dict[str, Any]:
    """Return the optimizer's state on this rank by the names of the parameters: whole tensors, or pieces of them."""
    named, ranges = optimizer.own_state()
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.module.named_parameters(remove_duplicate=False):
        shape = parameter.shape if model.shards is None else model.shards.shape_of(parameter)
        shapes[name] = tuple(shape)

    def piece(value: Any, name: str) -> Any:
        part = ranges(name)
        if part is not None and isinstance(value, torch.Tensor) and value.shape == (part.end - part.start,):
            return _located(flat_pieces(value, part.start, shapes[name]), name, model.shared)
        return _located(value, name, model.shared)

    entries = {
        name: {key: piece(value, name) for key, value in entry.items()} for name, entry in named["state"].items()
    }
    return {**named, "state": entries}


def whole_shapes(model: DistributedModel) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the parameters and buffers of the whole model, as its state dict has them."""
    shapes = {
        name: tuple(value.shape)
        for name, value in local_parts.state_dict(model.module).items()
        if isinstance(value, torch.Tensor)
    }
    if model.shards is not None:
        for name, parameter in model.module.named_parameters(remove_duplicate=False):
            shapes[name] = tuple(model.shards.shape_of(parameter))
    if model.shared is not None:
        shapes |= {name: cut.shape for name, cut in model.shared.cuts.items() if name in shapes}
    return shapes


def _located(value: Any, name: str, shared: SharedModel | None) -> Any:
    """Return a part as pieces of the whole tensor, where a tensor group has cut it."""
    cut = None if shared is None else shared.cuts.get(name)
    if shared is None or cut is None or cut.dim is None:
        return value
    part = local_shape(cut, shared.peers)
    if isinstance(value, torch.Tensor):
        if tuple(value.shape) != part:
            return value
        value = [Piece(value, (0,) * value.dim(), part)]
    elif not isinstance(value, list):
        return value
    first = part[cut.dim] * shared.peers.index
    moved = []
    for piece in value:
        offsets = tuple(offset + first * (dim == cut.dim) for dim, offset in enumerate(piece.offsets))
        moved.append(Piece(piece.tensor, offsets, cut.shape))
    return moved
