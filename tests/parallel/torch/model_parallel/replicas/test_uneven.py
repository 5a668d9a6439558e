"""`model.join()`: replicas make unequal numbers of steps inside, and are equal afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

FOUR = {"partitions": 2, "microbatches": 2, "replicas": 2, "ddp": True}
# The number of batches of replica 0 and of replica 1.
BATCHES = (2, 4)


def batch(replica: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * replica + number)
    return torch.randn(4, models.WIDTH, generator=generator), torch.randint(
        0, models.CLASSES, (4,), generator=generator
    )


def train(rescale: bool, rounds: int) -> dict[str, torch.Tensor]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module = models.build("Tied")[0]
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    evaluate = smp.step(lambda inputs, target: model(inputs).detach())

    for _ in range(rounds):
        with model.join(divide_by_initial_world_size=not rescale):
            for number in range(BATCHES[smp.dp_rank()]):
                optimizer.zero_grad()
                train_step(*batch(smp.dp_rank(), number))
                optimizer.step()
            evaluate(*batch(smp.dp_rank(), 0))
        evaluate(*batch(smp.dp_rank(), 0))
    return model.state_dict()


def train_alone(rescale: bool, rounds: int) -> dict[str, torch.Tensor]:
    module = models.build("Tied")[0]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(rounds):
        for number in range(max(BATCHES)):
            optimizer.zero_grad()
            active = [replica for replica, count in enumerate(BATCHES) if number < count]
            for replica in active:
                inputs, target = batch(replica, number)
                loss = nn.functional.cross_entropy(module(inputs), target)
                (loss / (len(active) if rescale else len(BATCHES))).backward()
            optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("rescale", [False, True])
def test_a_replica_that_has_ended_adds_nothing_and_takes_what_the_others_learn(ranks: Ranks, rescale: bool) -> None:
    """Two rounds, because only the second one shows whether the optimizers are equal, too."""
    expected = train_alone(rescale, rounds=2)
    for weights in ranks.run(train, dict(FOUR), rescale, 2):
        for name, weight in expected.items():
            torch.testing.assert_close(weights[name], weight, atol=1e-6, rtol=0)


def terminate() -> int:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    model = smp.DistributedModel(models.build("Chain")[0])

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    steps = 0

    def epoch() -> None:
        nonlocal steps
        with model.join(throw_on_early_termination=True):
            for number in range(BATCHES[smp.dp_rank()]):
                train_step(*batch(smp.dp_rank(), number))
                steps += 1

    with pytest.raises(ParallelError, match="replica 0 has no batches left and replica 1 has some: throw_on_early"):
        epoch()
    train_step(*batch(0, 0))
    return steps


def test_the_first_replica_that_ends_may_end_all(ranks: Ranks) -> None:
    assert ranks.run(terminate, dict(FOUR)) == [2, 2, 2, 2]


def join_alone() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    with smp.DistributedModel(models.build("Chain")[0]).join():
        pass


def test_join_is_refused_without_replicas(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match="for replicas of the pipeline"):
        ranks.run(join_alone, {"partitions": 2})
    with pytest.raises(RankFailedError, match="without a step inside or before"):
        ranks.run(join_alone, dict(FOUR))
