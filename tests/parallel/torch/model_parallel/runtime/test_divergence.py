"""Diverging ranks end the step with a reason on every rank, instead of a hang; slow ranks do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks

TWO = {"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0}
SAME = "must do the same on every rank"


class Net(nn.Module):
    """`first` and `third` on rank 0, `second` on rank 1."""

    def __init__(self) -> None:
        import herringbone_parallel.torch.model_parallel.api as smp

        super().__init__()
        self.first = nn.Linear(6, 6)
        with smp.partition(1):
            self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)
        if smp.pp_size() == 3:
            with smp.partition(2):
                self.fourth = nn.Linear(6, 6)


Body = Callable[[Any, int, torch.Tensor], Any]


def failure_of(body: Body, steps: int = 1) -> tuple[str, float]:
    """Run steps on a rank, and return the error's text and the seconds until it was raised."""
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(Net())
    train = smp.step(lambda inputs: body(model, smp.pp_rank(), inputs))
    start = time.monotonic()
    try:
        for number in range(1, steps + 1):
            train(torch.full((8, 6), float(number)))
    except ParallelError as failure:
        return str(failure), time.monotonic() - start
    return "", time.monotonic() - start


def another_module(model: Any, rank: int, x: torch.Tensor) -> Any:
    net = model.module
    return net.third(net.second(net.first(x)) if rank == 0 else net.third(net.first(x)))


def another_operation(model: Any, rank: int, x: torch.Tensor) -> Any:
    """Regression: with as many calls on the same ranks no message was missing, and the ranks had different results."""
    score = model.module.second(x)
    return torch.relu(score) if rank == 0 else torch.tanh(score)


def one_ends_early(model: Any, rank: int, x: torch.Tensor) -> Any:
    net = model.module
    hidden = net.second(net.first(x))
    return net.first(hidden) if rank == 0 else hidden


def one_skips_the_backward(model: Any, rank: int, x: torch.Tensor) -> Any:
    loss = model.module.second(model.module.first(x)).sum()
    if rank == 1:
        model.backward(loss)
    return loss


def one_operation_more(model: Any, rank: int, x: torch.Tensor) -> Any:
    hidden = model.module.first(x)
    if rank == 1:
        hidden = hidden + 1
    return model.module.second(hidden)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (another_module, "microbatch 0 after 'first': pipeline rank 0 called 'second', rank 1 called 'third'"),
        (one_operation_more, "after 'first': pipeline rank 0 called 'second', rank 1 called 'torch.add'"),
    ],
)
@pytest.mark.parametrize("pipeline", ["simple", "interleaved"])
def test_ranks_that_diverge_are_named_on_each(ranks: Ranks, body: Body, expected: str, pipeline: str) -> None:
    for reason, seconds in ranks.run(failure_of, {**TWO, "pipeline": pipeline}, body):
        assert expected in reason
        assert SAME in reason
        assert seconds < 5


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (another_operation, "pipeline rank 0 called 'torch.relu', rank 1 called 'torch.tanh'"),
        (one_ends_early, "after 'second': pipeline rank 0 called 'first', rank 1 ended the step function"),
        (one_skips_the_backward, "pipeline rank 0 ended the step function, rank 1 called 'model.backward'"),
    ],
)
def test_a_rank_that_has_finished_explains_itself_to_one_that_waits(ranks: Ranks, body: Body, expected: str) -> None:
    (reason, seconds), _ = ranks.run(failure_of, dict(TWO), body)
    assert expected in reason
    assert seconds < 5


def test_the_third_rank_gets_the_reason_too(ranks: Ranks) -> None:
    for reason, _ in ranks.run(failure_of, {**TWO, "partitions": 3}, another_module):
        assert "called 'second'" in reason
        assert "called 'third'" in reason


def only_rank_0_asks(model: Any, rank: int, x: torch.Tensor) -> Any:
    loss = model.module.second(model.module.first(x)).sum()
    if rank == 0:
        loss.item()
    return loss


def only_rank_0_asks_in_step_2(model: Any, rank: int, x: torch.Tensor) -> Any:
    return only_rank_0_asks(model, rank if x[0, 0] == 2 else 1, x)


def only_rank_0_asks_in_the_middle(model: Any, rank: int, x: torch.Tensor) -> Any:
    hidden = model.module.second(model.module.first(x))
    total = hidden.sum()
    if rank == 0:
        total.item()
    return model.module.third(hidden)


ASKED = "rank 0 waits for a tensor's data (for .item(), `if` or the like) from rank 1 in microbatch 0"


def test_a_value_that_only_one_rank_reads_is_no_hang(ranks: Ranks) -> None:
    """The calls are the same, so no call is named. Rank 1 has finished and will send nothing more.

    In the first step it would wait for rank 0, to agree on the turns of microbatches.
    """
    (reason, _), _ = ranks.run(failure_of, dict(TWO), only_rank_0_asks_in_step_2, 2)
    assert f"pipeline rank 1 has ended its script, but {ASKED} (its last call: 'torch.sum')" in reason


def test_a_value_that_only_one_rank_reads_in_many_steps(ranks: Ranks) -> None:
    for reason, _ in ranks.run(failure_of, dict(TWO), only_rank_0_asks, 2):
        assert ASKED in reason, "also on rank 1, which is in the next step then"


def test_ranks_that_wait_for_each_other_name_what_they_wait_for(ranks: Ranks) -> None:
    for reason, _ in ranks.run(failure_of, dict(TWO), only_rank_0_asks_in_the_middle):
        assert f"no rank of the pipeline can go on in step 1: {ASKED}" in reason
        assert "; rank 1 waits for the shapes of what a call returned from rank 0 in microbatch 0" in reason


def a_different_number(model: Any, rank: int, x: torch.Tensor) -> Any:
    """In the second step only rank 1 knows the shapes of the multiplication."""
    hidden = model.module.second(model.module.first(x))
    model.count = getattr(model, "count", 0) + 1
    return (hidden * (7.0 if rank == 1 else 7.0 + model.count)).sum()


def test_an_argument_that_is_not_the_same_is_no_hang(ranks: Ranks) -> None:
    (reason, _), _ = ranks.run(failure_of, dict(TWO), a_different_number, 2)
    assert "rank 0 waits for the shapes of what a call returned" in reason
    assert "an argument that is not the same on every rank" in reason


class Slow(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(1.3)
        return super().forward(x)


def slow_but_right() -> tuple[float, int]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state

    with smp.partition(1):
        slow = Slow(6, 6)
    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), slow, nn.Linear(6, 6)))

    @smp.step
    def train(inputs: torch.Tensor) -> Any:
        loss = model(inputs).sum()
        model.backward(loss)
        return loss

    total = float(train(torch.ones(8, 6)).reduce_sum())
    return total, state.get().steps


def test_a_rank_that_computes_for_long_ends_no_step(ranks: Ranks) -> None:
    one, other = ranks.run(slow_but_right, {**TWO, "microbatches": 2})
    assert one == other


def leave_early() -> str:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(Net())
    train = smp.step(lambda inputs: model.module.second(model.module.first(inputs)).sum().item())
    train(torch.ones(8, 6))
    if smp.pp_rank() == 1:
        return ""
    start = time.monotonic()
    with pytest.raises(ParallelError) as caught:
        train(torch.ones(8, 6))
    assert time.monotonic() - start < 5
    return str(caught.value)


def test_a_rank_whose_script_has_ended_is_not_waited_for(ranks: Ranks) -> None:
    """Regression: after its goodbye, the step of the other ranks waited forever."""
    reasons = ranks.run(leave_early, dict(TWO))
    assert "pipeline rank 1 has ended its script, but rank 0 waits for" in reasons[0]
