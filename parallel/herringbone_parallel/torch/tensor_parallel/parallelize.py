"""`parallelize`: share the layers of a model between the ranks of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.tensor_parallel.plans import styles
from herringbone_parallel.torch.tensor_parallel.sharing import share
from herringbone_parallel.torch.tensor_parallel.storage import DTensors

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Model = TypeVar("Model", bound=nn.Module)


def parallelize(model: Model, mesh: DeviceMesh | None, plan: Mapping[str, str] | None = None) -> Model:
    """Share the layers of a model, in place, between the ranks of `mesh`, each of which must call it.

        parallelize(model, mesh["tensor"])
        parallelize(model, mesh["tensor"], {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"})

    Call it before `fully_shard`, before activation checkpointing and before the optimizer is made. Without `plan` the
    model's own is used, or ours for its family; `plans` lists the styles. Afterwards every parameter is a `DTensor` of
    its old name and whole shape. Modules compute with plain tensors, of which attentions see this rank's heads. All
    ranks take the parameters, the buffers and the state of the random numbers of the first one, and have to be given
    the same batches. Parameters on the `meta` device stay there.

    Raises `ParallelError` if a parameter is on the meta device on some of the ranks only, for a model without a plan,
    and for sizes and heads that the ranks do not divide.
    """
    if mesh is None or mesh.size() == 1:
        return model
    storage = DTensors(mesh)
    _check_alike(model, storage)
    share(model, styles(model, plan), storage)
    device = torch.device(mesh.device_type)
    for buffer in model.buffers():
        if not buffer.is_meta and buffer.device.type == device.type:
            # A copy, because a broadcast needs contiguous memory.
            values = buffer.detach().contiguous()
            dist.broadcast(values, storage.peers.ranks[0], group=storage.peers.group)
            buffer.detach().copy_(values)
    _share_randomness(storage, device)
    return model


def _check_alike(model: nn.Module, storage: DTensors) -> None:
    """Raise `ParallelError` on all ranks if they differ in the parameters that have values, which the first one sends.

    Otherwise some would wait for values that others do not send.
    """
    on_meta = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    by_rank: list[Any] = [None] * storage.peers.degree
    dist.all_gather_object(by_rank, on_meta, group=storage.peers.group)
    if any(others != on_meta for others in by_rank):
        some = sorted(set().union(*by_rank) - set.intersection(*map(set, by_rank)))
        raise ParallelError(
            f"{', '.join(some[:3])}: on the meta device on some of the ranks {storage.peers.ranks}, which share layers,"
            " and not on others. Make the model alike on ranks of one tensor group, or give all ranks rank 0's values"
            " with transform(load_state_dict_from_rank0=True)"
        )


def _share_randomness(storage: DTensors, device: torch.device) -> None:
    """Take the first rank's random numbers, so that dropout outside of shared layers is the same on every rank."""
    source, group = storage.peers.ranks[0], storage.peers.group
    state = torch.get_rng_state().to(device)
    dist.broadcast(state, source, group=group)
    torch.set_rng_state(state.cpu())
    if device.type == "cuda":
        state = torch.cuda.get_rng_state().to(device)
        dist.broadcast(state, source, group=group)
        torch.cuda.set_rng_state(state.cpu())
