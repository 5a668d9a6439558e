"""Objects between ranks and barriers, under SMP v1's names: one rank calls outside of a step, another rank answers.

Objects are pickled. Each one travels behind a MAC of its connection: a rank unpickles only what a rank of the job sent.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import Enum
from typing import Any

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import WORLD, CommGroup, RankType
from herringbone_parallel.tensorflow.model_parallel import state
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport


def send(obj: Any, dest_rank: int, rank_type: RankType) -> None:
    """Send a picklable object to one rank, and return when that rank has received it.

        if smp.pp_rank() == 0:
            smp.send(vocabulary, 1, smp.RankType.PP_RANK)
        else:
            vocabulary = smp.recv_from(0, smp.RankType.PP_RANK)

    Two ranks that send to each other at the same time both wait forever. Raises `ParallelError` for a rank that does
    not exist, for this rank itself, and for a peer that is gone. Source: SMP v1, `smp.send`.
    """
    _send_to([_global_rank("send", dest_rank, rank_type)], obj)


def recv_from(src_rank: int, rank_type: RankType) -> Any:
    """Receive the object that `src_rank` sends to this rank with `send` or `broadcast`; see `send`."""
    source = _global_rank("recv_from", src_rank, rank_type)
    return _received(source, "send")


def broadcast(obj: Any, group: CommGroup) -> None:
    """Send a picklable object to every other rank of the group, and return when all have received it.

        if smp.rank() == 0:
            smp.broadcast(settings, smp.WORLD)
        else:
            settings = smp.recv_from(0, smp.RankType.WORLD_RANK)

    Source: SMP v1, `smp.broadcast`; the receivers call `recv_from`.
    """
    own_rank = state.get().rank
    _send_to([rank for rank in _members("broadcast", group) if rank != own_rank], obj)


def allgather(obj: Any, group: CommGroup) -> list[Any]:
    """Return the object of each rank of the group, in the order of their ranks in it; every rank of it must call."""
    own_rank = state.get().rank
    ranks = _members("allgather", group)
    others = [rank for rank in ranks if rank != own_rank]
    data = _pickled(obj, "allgather")
    # Send to all before receiving from any, and wait for receipts last. Any other order lets two ranks wait for each
    # other.
    for rank in others:
        _transport().send_object(rank, data)
    received = {rank: _received(rank, "allgather") for rank in others}
    for rank in others:
        _transport().wait_for_receipt(rank)
    return [obj if rank == own_rank else received[rank] for rank in ranks]


def barrier(group: CommGroup = WORLD) -> None:
    """Wait until every rank of the group has called."""
    _members("barrier", group)
    allgather(None, group)


def dp_barrier() -> None:
    """Wait until every rank of this partition has called."""
    barrier(CommGroup.DP_GROUP)


def mp_barrier() -> None:
    """Wait until every rank of this model-parallel group has called."""
    barrier(CommGroup.MP_GROUP)


def _send_to(peers: Sequence[int], obj: Any) -> None:
    data = _pickled(obj, "send")
    # To all peers first, so that they receive in parallel.
    for peer in peers:
        _transport().send_object(peer, data)
    for peer in peers:
        _transport().wait_for_receipt(peer)


def _pickled(obj: Any, call: str) -> bytes:
    try:
        return pickle.dumps((call, obj))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParallelError(f"a {type(obj).__qualname__} cannot be sent to another rank: {error}") from error


def _received(rank: int, call: str) -> Any:
    """Return the object that a rank sends in the same kind of call; raises `ParallelError` for another kind."""
    its_call, obj = pickle.loads(_transport().receive_object(rank))  # noqa: S301  same trust domain
    if its_call != call:
        raise ParallelError(
            f"rank {rank} makes another call than rank {state.get().rank} here. Every rank of a pipeline makes the same"
            " calls in the same order, without `if smp.rank() == 0`: fit, evaluate and predict, save_model,"
            " save_weights and load_weights, save and restore of smp.CheckpointManager"
        )
    return obj


def _transport() -> Transport:
    transport = state.get().transport
    assert transport is not None, "a job of one rank has no peers"
    return transport


def _global_rank(function: str, index: int, rank_type: RankType) -> int:
    """Return the global rank for `index`; raises `ParallelError` for a rank that this one cannot talk to."""
    if not isinstance(rank_type, RankType):
        raise ParallelError(f"smp.{function}: {rank_type!r} is not a rank type; take one of {_names(RankType)}")
    ranks = _members(function, rank_type.value)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(ranks):
        raise ParallelError(
            f"smp.{function}: there is no {rank_type.name} {index!r}; they go from 0 to {len(ranks) - 1}"
        )
    if ranks[index] == state.get().rank:
        raise ParallelError(f"smp.{function}: {rank_type.name} {index} is this rank itself, which would wait forever")
    return ranks[index]


def _members(function: str, group: CommGroup) -> tuple[int, ...]:
    # All ranks trace the whole step, and at different times: an object sent from there would reach nobody.
    if state.is_tracing():
        raise ParallelError(f"smp.{function} inside a step; call it before or after the step")
    if not isinstance(group, CommGroup):
        raise ParallelError(f"smp.{function}: {group!r} is not a group; take one of {_names(CommGroup)}")
    rank_state = state.get()
    return rank_state.grid.group(group.value, rank_state.rank)


def _names(kind: type[Enum]) -> str:
    return ", ".join(f"smp.{kind.__name__}.{member.name}" for member in kind)
