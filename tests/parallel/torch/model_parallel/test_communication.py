"""Objects, groups and barriers between real ranks."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parallel.torch.ranks import RankFailedError, Ranks

THREE = {"partitions": 3, "microbatches": 1}


def pass_around() -> list[Any]:
    import herringbone_parallel.torch.model_parallel.api as smp

    received = []
    if smp.pp_rank() == 0:
        smp.send({"words": ["a", "b"], "weight": torch.arange(3)}, 1, smp.RankType.PP_RANK)
        smp.send("second", 1, smp.RankType.MP_RANK)
        smp.broadcast(("to", "all"), smp.PP_GROUP)
        received.append(smp.recv_from(2, smp.RankType.WORLD_RANK))
    elif smp.pp_rank() == 1:
        received.append(smp.recv_from(0, smp.RankType.PP_RANK))
        received.append(smp.recv_from(0, smp.RankType.MP_RANK))
        received.append(smp.recv_from(0, smp.RankType.WORLD_RANK))
    else:
        received.append(smp.recv_from(0, smp.RankType.WORLD_RANK))
        smp.send(None, 0, smp.RankType.WORLD_RANK)
    return received


def test_objects_arrive_in_order_whatever_the_kind_of_rank(ranks: Ranks) -> None:
    first, second, third = ranks.run(pass_around, dict(THREE))
    assert first == [None]
    assert second[0]["words"] == ["a", "b"]
    assert torch.equal(second[0]["weight"], torch.arange(3))
    assert second[1:] == ["second", ("to", "all")]
    assert third == [("to", "all")]


def gather() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.barrier()
    smp.dp_barrier()
    smp.mp_barrier()
    sums = []
    for group in (smp.get_world_process_group(), smp.get_pp_process_group(), smp.get_dp_process_group()):
        tensor = torch.tensor([smp.rank() + 1])
        dist.all_reduce(tensor, group=group)
        sums.append(int(tensor))
    return (
        smp.allgather(smp.rank() * 10, smp.CommGroup.WORLD),
        smp.allgather("alone", smp.DP_GROUP),
        sums,
        [smp.get_world_group(), smp.get_mp_group(), smp.get_tp_group(), smp.get_rdp_group()],
    )


def test_groups_have_the_ranks_of_their_lists(ranks: Ranks) -> None:
    for rank, (everyone, own, sums, lists) in enumerate(ranks.run(gather, dict(THREE))):
        assert everyone == [0, 10, 20]
        assert own == ["alone"]
        assert sums == [6, 6, rank + 1]
        assert lists == [[0, 1, 2], [0, 1, 2], [rank], [rank]]


def rendezvous() -> bool:
    import herringbone_parallel.torch.model_parallel.api as smp

    if smp.rank() == 1:
        time.sleep(0.5)
        smp.recv_from(0, smp.RankType.WORLD_RANK)
        return True
    start = time.monotonic()
    smp.send("small enough for a socket's buffer", 1, smp.RankType.WORLD_RANK)
    return time.monotonic() - start > 0.3


def test_send_returns_when_the_object_has_been_received(ranks: Ranks) -> None:
    assert all(ranks.run(rendezvous, {"partitions": 2, "microbatches": 1}))


def refused() -> list[str]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    @smp.step
    def inside(inputs: torch.Tensor) -> None:
        smp.barrier()

    messages = []
    for call in (
        lambda: smp.send(1, 3, smp.RankType.PP_RANK),
        lambda: smp.send(1, -1, smp.RankType.PP_RANK),
        lambda: smp.recv_from(smp.rank(), smp.RankType.WORLD_RANK),
        lambda: smp.send(1, 0, "PP_RANK"),  # type: ignore[arg-type]
        lambda: smp.broadcast(1, smp.RankType.PP_RANK),  # type: ignore[arg-type]
        lambda: smp.broadcast(threading.Lock(), smp.WORLD),
        lambda: inside(torch.zeros(2)),
    ):
        with pytest.raises(ParallelError) as caught:
            call()
        messages.append(str(caught.value))
    smp.barrier()
    return messages


def test_an_error_names_what_cannot_be_sent(ranks: Ranks) -> None:
    first, second = ranks.run(refused, {"partitions": 2, "microbatches": 1})
    assert first[0] == "smp.send: there is no PP_RANK 3; they go from 0 to 1"
    assert first[1] == "smp.send: there is no PP_RANK -1; they go from 0 to 1"
    assert second[2] == "smp.recv_from: WORLD_RANK 1 is this rank itself, which would wait forever"
    assert "'PP_RANK' is not a rank type; take one of smp.RankType.WORLD_RANK, " in first[3]
    assert "is not a group; take one of smp.CommGroup.WORLD, smp.CommGroup.MP_GROUP" in first[4]
    assert "a lock cannot be sent to another rank" in first[5]
    # The other rank may report it first, so the text is not at the start.
    assert "smp.barrier inside a step; call it before or after the step" in first[6]


def leave() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    if smp.rank() == 1:
        os._exit(9)
    smp.recv_from(1, smp.RankType.WORLD_RANK)


def test_a_lost_peer_is_an_error_and_no_endless_wait() -> None:
    ranks = Ranks()
    with pytest.raises(RankFailedError, match=r"smp.recv_from: lost contact with ranks \[1\]"):
        ranks.run(leave, {"partitions": 2, "microbatches": 1})
    ranks.close()
