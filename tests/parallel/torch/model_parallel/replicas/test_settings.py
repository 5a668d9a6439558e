"""The settings of `ddp`: the rendezvous port, several backwards per step and several steps per update."""

from __future__ import annotations

import socket

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks, free_port

FOUR = {"partitions": 2, "microbatches": 2, "replicas": 2, "ddp": True}


def rendezvous() -> tuple[int, int, int, list[int], list[int], bool]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state

    smp.barrier()
    with socket.socket() as caller:
        listens = caller.connect_ex(("127.0.0.1", state.get().settings.ddp_port or 0)) == 0
    smp.barrier()
    return smp.pp_rank(), smp.dp_rank(), smp.dp_size(), smp.get_pp_group(), smp.get_dp_group(), listens


def test_the_ranks_meet_on_the_port_of_ddp_port(ranks: Ranks) -> None:
    by_rank = ranks.run(rendezvous, {**FOUR, "ddp_port": free_port(), "ddp_dist_backend": "gloo"})
    assert by_rank == [
        (0, 0, 2, [0, 1], [0, 2], True), (1, 0, 2, [0, 1], [1, 3], True),
        (0, 1, 2, [2, 3], [0, 2], True), (1, 1, 2, [2, 3], [1, 3], True),
    ]  # fmt: skip


def test_port_zero_is_refused(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match="no ddp_port 0: ranks cannot agree"):
        ranks.run(rendezvous, {**FOUR, "ddp_port": 0})


def test_ddp_alone_makes_no_replicas(ranks: Ranks) -> None:
    assert [by_rank[2] for by_rank in ranks.run(rendezvous, {"partitions": 2, "ddp": True})] == [1, 1]


def accumulate(passes: int, checkpointed: bool) -> dict[str, torch.Tensor]:
    """Train with two losses per microbatch, and several steps before each update; return the weights."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(models.WIDTH, models.WIDTH), nn.Tanh()) for _ in range(4)]
    module = nn.Sequential(*blocks, nn.Linear(models.WIDTH, models.CLASSES))
    if checkpointed:
        for block in blocks:
            smp.set_activation_checkpointing(block)
    model = smp.DistributedModel(module, backward_passes_per_step=passes)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        output = model(inputs)
        model.backward(nn.functional.cross_entropy(output, target), retain_graph=True)
        model.backward(output.square().mean())

    _, inputs, target = models.build("Chain")
    local_batch = [tensor.chunk(2)[smp.dp_rank()] for tensor in (inputs, target)]
    for step in range(2 * passes):
        train_step(*(tensor.roll(step, 0) for tensor in local_batch))
        if (step + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
        else:
            # The gradients of this replica alone.
            with pytest.raises(ParallelError, match=rf"after {step % passes + 1} of {passes} .*every {passes} steps"):
                optimizer.step()
    return model.state_dict()


def accumulate_alone(passes: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(models.WIDTH, models.WIDTH), nn.Tanh()) for _ in range(4)]
    module = nn.Sequential(*blocks, nn.Linear(models.WIDTH, models.CLASSES))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    _, inputs, target = models.build("Chain")
    for step in range(2 * passes):
        for part, labels in zip(inputs.chunk(2), target.chunk(2), strict=True):
            output = module(part.roll(step, 0))
            loss = nn.functional.cross_entropy(output, labels.roll(step, 0)) + output.square().mean()
            (loss / 2).backward()
        if (step + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
    return module.state_dict()


@pytest.mark.parametrize(("passes", "checkpointed"), [(1, False), (3, False), (2, True)])
def test_several_backwards_a_step_and_several_steps_an_update(ranks: Ranks, passes: int, checkpointed: bool) -> None:
    expected = accumulate_alone(passes)
    for weights in ranks.run(accumulate, dict(FOUR), passes, checkpointed):
        for name, weight in expected.items():
            torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=0)
