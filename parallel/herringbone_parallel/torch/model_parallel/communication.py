"""Objects between ranks, and barriers, under SMP v1's names; for use outside of steps.

Objects are pickled: the ranks of one job are one trust domain, as in `torch.distributed`'s own object collectives. A
CUDA tensor arrives on the device with the number of the sender's device; send `.cpu()` between other devices.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import (
    DP_GROUP,
    MP_GROUP,
    PP_GROUP,
    RDP_GROUP,
    TP_GROUP,
    WORLD,
    CommGroup,
    RankType,
)
from herringbone_parallel.torch.model_parallel import state
from herringbone_parallel.torch.model_parallel.runtime.microbatch import current

# A tag of this module, so that a script's plain `dist.send` between the same ranks never meets a receive from here.
_TAG = 0x534D50

Result = TypeVar("Result")


def send(obj: Any, dest_rank: int, rank_type: RankType) -> None:
    """Send a picklable object to one rank, and return when that rank has received it.

        if smp.pp_rank() == 0:
            smp.send(vocabulary, 1, smp.RankType.PP_RANK)
        else:
            vocabulary = smp.recv_from(0, smp.RankType.PP_RANK)

    Two ranks that send to each other at the same time wait forever. Raises `ParallelError` for a rank that does not
    exist or is this one, and for a peer that is gone. Source: SMP v1, `smp.send`.
    """
    _send_to([_peer("send", dest_rank, rank_type)], obj)


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Receive the object that `src_rank` sends to this rank with `send` or `broadcast`; see `send`."""
    source = _peer("recv_from", src_rank, rank_type)
    size = torch.zeros(1, dtype=torch.int64)

    def receive() -> torch.Tensor:
        dist.recv(size, source, tag=_TAG)
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(data, source, tag=_TAG)
        # The receipt, for which `send` waits.
        dist.send(size, source, tag=_TAG)
        return data

    return pickle.loads(_explained("recv_from", [source], receive).numpy().tobytes())  # noqa: S301  same trust domain


def broadcast(obj: Any, group: CommGroup) -> None:
    """Send a picklable object to every other rank of the group, and return when all have received it.

        if smp.rank() == 0:
            smp.broadcast(settings, smp.WORLD)
        else:
            settings = smp.recv_from(0, smp.RankType.WORLD_RANK)

    Source: SMP v1, `smp.broadcast`; the receivers call `recv_from`.
    """
    ranks, own_rank = _members("broadcast", group), state.get().rank
    _send_to([rank for rank in ranks if rank != own_rank], obj)


def allgather(obj: Any, group: CommGroup) -> list[Any]:
    """Return the objects of all ranks of the group, in the order of their ranks in it; each of them must call."""
    ranks = _members("allgather", group)
    gathered: list[Any] = [None] * len(ranks)
    _explained("allgather", ranks, lambda: dist.all_gather_object(gathered, obj, group=state.get().groups[group]))
    # A process group orders its ranks by their global numbers, the grid by its placement strategy.
    by_rank = dict(zip(sorted(ranks), gathered, strict=True))
    return [by_rank[rank] for rank in ranks]


def barrier(group: CommGroup = WORLD) -> None:
    """Wait until every rank of the group has called it."""
    _explained("barrier", _members("barrier", group), lambda: dist.barrier(group=state.get().groups[group]))


def dp_barrier() -> None:
    """Wait until every rank of this partition has called it."""
    barrier(DP_GROUP)


def mp_barrier() -> None:
    """Wait until every rank of this model-parallel group has called it."""
    barrier(MP_GROUP)


def get_world_process_group() -> dist.ProcessGroup:
    """Return torch's process group of all ranks."""
    return state.get().groups[WORLD]


def get_mp_process_group() -> dist.ProcessGroup:
    """Return torch's process group of `get_mp_group()`."""
    return state.get().groups[MP_GROUP]


def get_dp_process_group() -> dist.ProcessGroup:
    """Return torch's process group of `get_dp_group()`."""
    return state.get().groups[DP_GROUP]


def get_pp_process_group() -> dist.ProcessGroup:
    """Return torch's process group of `get_pp_group()`."""
    return state.get().groups[PP_GROUP]


def get_tp_process_group() -> dist.ProcessGroup:
    """Return torch's process group of `get_tp_group()`."""
    return state.get().groups[TP_GROUP]


def get_rdp_process_group() -> dist.ProcessGroup:
    """Return torch's process group of `get_rdp_group()`."""
    return state.get().groups[RDP_GROUP]


def _send_to(peers: Sequence[int], obj: Any) -> None:
    try:
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParallelError(f"a {type(obj).__qualname__} cannot be sent to another rank: {error}") from error

    def deliver() -> None:
        size = torch.tensor([data.numel()])
        under_way = [dist.isend(part, peer, tag=_TAG) for peer in peers for part in (size, data)]
        for work in under_way:
            assert work is not None, "this rank belongs to the world"
            work.wait()
        receipt = torch.zeros(1, dtype=torch.int64)
        for peer in peers:
            dist.recv(receipt, peer, tag=_TAG)

    _explained("send", peers, deliver)


def _peer(function: str, index: int, rank_type: RankType) -> int:
    """Return the global rank of `index`, or raise `ParallelError` when this rank cannot exchange messages with it."""
    _require_outside_step(function)
    if not isinstance(rank_type, RankType):
        raise ParallelError(f"smp.{function}: {rank_type!r} is not a rank type; take one of {_names(RankType)}")
    library = state.get()
    ranks = library.grid.group(rank_type.value.value, library.rank)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(ranks):
        raise ParallelError(
            f"smp.{function}: there is no {rank_type.name} {index!r}; they go from 0 to {len(ranks) - 1}"
        )
    if ranks[index] == library.rank:
        raise ParallelError(f"smp.{function}: {rank_type.name} {index} is this rank itself, which would wait forever")
    return ranks[index]


def _members(function: str, group: CommGroup) -> Sequence[int]:
    """Return the global ranks of a group of this rank's, in the order of their ranks in it."""
    _require_outside_step(function)
    if not isinstance(group, CommGroup):
        raise ParallelError(f"smp.{function}: {group!r} is not a group; take one of {_names(CommGroup)}")
    library = state.get()
    return library.grid.group(group.value, library.rank)


def _names(kind: type[Enum]) -> str:
    return ", ".join(f"smp.{kind.__name__}.{member.name}" for member in kind)


def _require_outside_step(function: str) -> None:
    # Each rank runs its microbatches in its own order, so the messages of two microbatches could be exchanged.
    if current() is not None:
        raise ParallelError(f"smp.{function} inside a step; call it before or after the step")


def _explained(function: str, peers: Sequence[int], exchange: Callable[[], Result]) -> Result:
    """Run an exchange of messages; turn its failure into a `ParallelError` that names the peers."""
    try:
        return exchange()
    except RuntimeError as error:
        # gloo and NCCL raise it for a peer that is gone, or that did not call within the group's timeout.
        reason = str(error).splitlines()[0]
        raise ParallelError(f"smp.{function}: lost contact with ranks {list(peers)}: {reason}") from error
