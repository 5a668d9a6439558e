"""Whole tensors from the parts of a tensor group, and back: state dicts of models and optimizers have whole ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from herringbone_parallel.torch.model_parallel.tensor.distribute import SharedModel
from herringbone_parallel.torch.tensor_parallel.operations import Peers
from herringbone_parallel.torch.tensor_parallel.storage import Cut


def local_shape(cut: Cut, peers: Peers) -> tuple[int, ...]:
    """Return the shape of one rank's part."""
    return tuple(size // peers.degree if dim == cut.dim else size for dim, size in enumerate(cut.shape))


def whole_state(state_dict: Mapping[str, Any], shared: SharedModel) -> dict[str, Any]:
    """Return the state dict with whole tensors; every rank of the tensor group must call it with the same names."""
    return {name: _whole(value, shared.cuts.get(name), shared.peers) for name, value in state_dict.items()}


def parts_of(state_dict: Mapping[str, Any], shared: SharedModel) -> dict[str, Any]:
    """Return the state dict with this rank's parts of whole tensors; parts stay as they are."""
    return {name: _part(value, shared.cuts.get(name), shared.peers) for name, value in state_dict.items()}


def whole_entries(state: Mapping[str, Any], shared: SharedModel) -> dict[str, Any]:
    """Return an optimizer's state by name with whole tensors; see `whole_state`."""
    return {name: whole_state(entry, _of_entry(entry, name, shared)) for name, entry in state.items()}


def parts_of_entries(state: Mapping[str, Any], shared: SharedModel) -> dict[str, Any]:
    """Return an optimizer's state by name with this rank's parts; see `parts_of`."""
    return {name: parts_of(entry, _of_entry(entry, name, shared)) for name, entry in state.items()}


def _of_entry(entry: Mapping[str, Any], name: str, shared: SharedModel) -> SharedModel:
    """Let each tensor of the parameter's state have the parameter's cut; those of other shapes are left alone."""
    cut = shared.cuts.get(name)
    return SharedModel(shared.peers, {} if cut is None else dict.fromkeys(entry, cut))


def _whole(value: Any, cut: Cut | None, peers: Peers) -> Any:
    if cut is None or cut.dim is None or not isinstance(value, torch.Tensor) or value.is_meta:
        return value
    if tuple(value.shape) != local_shape(cut, peers):
        return value
    return peers.join(value.detach(), cut.dim)


def _part(value: Any, cut: Cut | None, peers: Peers) -> Any:
    if cut is None or cut.dim is None or not isinstance(value, torch.Tensor) or tuple(value.shape) != cut.shape:
        return value
    return peers.part(value, cut.dim).clone()
