"""Ranks of a pipeline that call the step with different arguments: those of the first rank count, as in SMP v1."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.arguments import Arguments, digest
from herringbone_parallel.torch.model_parallel.runtime.messages import Purpose
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import Ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1, 2]), torch.tensor([2, 1])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)),
        (torch.zeros(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64)),
        (torch.zeros(1_000_000), torch.ones(1_000_000)),
        (1, 1.0),
        ("train", "eval"),
        (None, torch.zeros(1)),
        (np.zeros(2), np.ones(2)),
        ({"a": [1, 2]}, {"a": [1, 3]}),
    ],
)
def test_a_digest_tells_arguments_apart(one: Any, other: Any) -> None:
    assert digest(one) == digest(one) != digest(other)


def test_a_digest_ignores_the_model_and_how_a_tensor_lies_in_memory() -> None:
    matrix = torch.arange(6.0).reshape(2, 3)
    assert digest((nn.Linear(2, 2), matrix)) == digest((nn.Linear(2, 2), matrix.t().contiguous().t()))


def agreed(first: Any, second: Any) -> tuple[Arguments, list[Purpose]]:
    """Let two ranks agree on their arguments; return those of the second rank, and the purposes of the messages."""
    first, second = (Arguments((value,), {}, lambda *args: [args], CPU) for value in (first, second))
    first.seed, second.seed = 7, 8
    messages: deque[Any] = deque()
    purposes = []

    def send(_: int, purpose: Purpose, content: Any) -> None:
        purposes.append(purpose)
        messages.append(first.leaves() if purpose == Purpose.WANTED else content)

    first.agree(0, [1], send, lambda _: pytest.fail("the first rank waits for nobody"))
    second.agree(1, [0], send, lambda _: messages.popleft())
    assert second.seed == 7
    return second, purposes


def test_equal_arguments_stay_where_they_are() -> None:
    own = torch.ones(2)
    second, purposes = agreed([torch.ones(2), "a"], [own, "a"])
    assert purposes == [Purpose.DIGEST]
    assert second.parts[0][0][0][0] is own


def test_the_first_rank_s_arguments_replace_others_and_objects_stay() -> None:
    module = nn.Linear(1, 1)
    with pytest.warns(UserWarning, match="those of its first rank count"):
        second, purposes = agreed(
            [nn.Linear(1, 1), torch.ones(2), 3], [module, torch.zeros(5, requires_grad=True), None]
        )
    assert purposes == [Purpose.DIGEST, Purpose.WANTED]
    adopted = second.parts[0][0][0]
    assert adopted[0] is module
    assert adopted[1].tolist() == [1.0, 1.0]
    assert not adopted[1].requires_grad
    assert adopted[2] == 3


def test_arguments_of_another_structure_are_refused() -> None:
    with pytest.raises(
        ParallelError, match="2 values among its arguments on the pipeline's first rank, and 3 on this one"
    ):
        agreed([1, 2], [1, 2, 3])


STEPS = 3


def differing() -> Any:
    """Train on batches of this rank's own, with dropout and without a common seed."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, _, _ = models.build("Chain", torch.float64)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))

    @smp.step
    def train(batch: dict[str, torch.Tensor], factor: float) -> Any:
        loss = nn.functional.cross_entropy(model(batch["inputs"]) * factor, batch["target"])
        model.backward(loss)
        return loss, torch.rand(())

    generator = torch.Generator().manual_seed(40 + smp.rank())
    torch.manual_seed(100 + smp.rank())
    losses, drawn, batches = [], [], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            batch = {
                "inputs": torch.randn(4, models.WIDTH, generator=generator, dtype=torch.float64),
                "target": torch.randint(0, models.CLASSES, (4,), generator=generator),
            }
            batches.append(batch)
            optimizer.zero_grad()
            loss, number = train(batch, 1.0 + smp.rank())
            losses.append(loss.reduce_mean().item())
            drawn += [output.item() for output in number.outputs]
            optimizer.step()
    texts = [str(warning.message) for warning in caught if "those of its first rank count" in str(warning.message)]
    return losses, drawn, batches, len(texts)


def test_ranks_with_other_batches_train_on_those_of_the_first_rank(ranks: Ranks) -> None:
    first, second = ranks.run(differing, {"partitions": 2, "microbatches": 2})
    module, _, _ = models.build("Chain", torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    losses = []
    for batch in first[2]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(batch["inputs"]), batch["target"])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert not torch.equal(first[2][0]["inputs"], second[2][0]["inputs"])
    for of_rank in (first, second):
        assert of_rank[0] == pytest.approx(losses, abs=1e-12)
    assert first[1] == second[1], "code on every rank draws the first rank's numbers"
    assert (first[3], second[3]) == (0, STEPS)
