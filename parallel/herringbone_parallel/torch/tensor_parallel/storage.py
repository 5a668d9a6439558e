"""The two forms in which a rank keeps its part of a parameter.

DTensors       a `DTensor` on the mesh of the tensor group. `fully_shard`, checkpoints and optimizers of torch know
               its whole shape.
LocalTensors   the parameter itself, which has this rank's part from now on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import nn

from herringbone_parallel.torch.tensor_parallel.operations import Peers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Cut:
    """A cut of a parameter of `shape` along `dim` into equal parts, one a rank; `dim` None: every rank has it all."""

    shape: tuple[int, ...]
    dim: int | None


class Storage(Protocol):
    """A form in which ranks keep parameters. `same_batch`: outside of shared modules, all have the same activations."""

    peers: Peers
    same_batch: bool

    def keep(self, parameter: nn.Parameter, dim: int | None) -> nn.Parameter:
        """Return the parameter that this rank keeps of a whole one: its part along `dim`, or all of it."""
        ...

    def local(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return what this rank keeps as a plain tensor, through which gradients flow."""
        ...


class LocalTensors:
    """Keeps parts in the parameters themselves, which an optimizer of the script may have already."""

    def __init__(self, peers: Peers, *, same_batch: bool) -> None:
        self.peers = peers
        self.same_batch = same_batch

    def keep(self, parameter: nn.Parameter, dim: int | None) -> nn.Parameter:
        if dim is not None:
            # Without torch's function protocol, by which a parameter may refuse to be read.
            with torch._C.DisableTorchFunctionSubclass():
                part = self.peers.part(parameter.detach(), dim)
                parameter.data = part.clone(memory_format=torch.contiguous_format)
        return parameter

    def local(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter


class DTensors:
    """Keeps parts as DTensors on `mesh`, the values being those of its first rank."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.peers = Peers(mesh.get_group())
        self.same_batch = True
        self._mesh = mesh

    def keep(self, parameter: nn.Parameter, dim: int | None) -> nn.Parameter:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        whole = parameter.detach()
        if not whole.is_meta:
            whole = whole.contiguous()
            dist.broadcast(whole, self.peers.ranks[0], group=self.peers.group)
        part = whole if dim is None else self.peers.part(whole, dim)
        # A copy, so that the whole parameter's memory is free.
        part = part.contiguous() if dim is None else part.clone(memory_format=torch.contiguous_format)
        shared = DTensor.from_local(
            part,
            self._mesh,
            [Replicate() if dim is None else Shard(dim)],
            run_check=False,
            shape=parameter.shape,
            stride=torch.empty(parameter.shape, device="meta").stride(),
        )
        return nn.Parameter(shared, parameter.requires_grad)

    def local(self, parameter: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        # A plain tensor where a script, or a part of torch, has put one in the module.
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter
