"""The reducer alone, with a simulated second replica that always does the same: its sums and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.replicas.options import CommHook, ReductionOptions
from herringbone_parallel.torch.model_parallel.replicas.reducer import Reducer

# A bucket for each of the layers below.
SMALL = {"bucket_cap_mb": 16 / (1 << 20)}


class Twin:
    """The peers of a replica with a twin: a sum doubles the tensor. `events` are the sums, named by their elements."""

    size, index = 2, 0

    def __init__(self, *, same: bool = True) -> None:
        self.events: list[Any] = []
        self.failures: list[BaseException] = []
        self._same = same
        self.ended = 0

    def start_sum(self, tensor: torch.Tensor) -> torch.futures.Future[Any]:
        votes = tensor.dtype == torch.int32
        self.events.append("votes" if votes else f"sum of {tensor.numel()}")
        tensor.mul_(2)
        if votes:
            tensor[-1] = tensor[-2] = 1 - self.ended
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result([tensor])
        return future

    def wait(self, future: torch.futures.Future[Any]) -> Any:
        return future.wait()

    def take_after(self, index: int, tensors: list[torch.Tensor]) -> None:
        self.events.append("order")

    def gather(self, number: int) -> dict[int, int]:
        return {0: number, 2: number if self._same else number + 1}

    def check(self) -> None: ...

    def report(self, failure: BaseException) -> None:
        self.failures.append(failure)


class Layers(nn.Module):
    """Three layers of one parameter each, used in another order than defined; `events` receives each gradient."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.ones(6))
        self.first = nn.Parameter(torch.ones(4))
        self.middle = nn.Parameter(torch.ones(5))
        self.idle = nn.Parameter(torch.ones(7))
        for name in ("first", "middle", "last"):
            parameter = getattr(self, name)
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))

    def forward(self, factor: float = 1.0) -> torch.Tensor:
        h = (self.first * factor).sum()
        h = (self.middle * h).sum()
        return (self.last * h).sum()


Run = Callable[..., list[Any]]


def build(**options: Any) -> tuple[Layers, Reducer, Twin, Run]:
    twin = Twin()
    layers = Layers(twin.events)
    reducer = Reducer(twin, layers.named_parameters, ReductionOptions(**{**SMALL, **options}))

    def run(*factors: float) -> list[Any]:
        """Make one step with a microbatch per factor; return its events."""
        twin.events.clear()
        with reducer.step():
            for factor in factors:
                reducer.expect()
                layers(factor).backward()
            twin.events.append("end")
        return list(twin.events)

    return layers, reducer, twin, run


BACKWARD = ["last", "middle", "first"]


def test_the_first_step_learns_and_the_next_ones_overlap() -> None:
    _, reducer, _, run = build()
    sums = ["sum of 7", "sum of 5", "sum of 4", "sum of 6"]
    assert run(1.0, 1.0) == [*BACKWARD, *BACKWARD, "end", *sums, "votes", "order"]
    assert [bucket.buffer.numel() for bucket in reducer.buckets] == [6, 5, 4, 7], (
        "in the order of their use; the idle one is last"
    )
    assert run(1.0, 1.0) == [
        *BACKWARD, "last", "sum of 6", "middle", "sum of 5", "first", "sum of 4", "sum of 7", "end", "votes",
    ]  # fmt: skip


def test_a_step_sends_as_many_sums_as_there_are_buckets_and_the_votes() -> None:
    _, _, _, run = build(bucket_cap_mb=25)
    run(1.0)
    assert [event for event in run(1.0) if event not in (*BACKWARD, "end")] == ["sum of 22", "votes"]


def test_without_overlap_everything_leaves_after_the_backward() -> None:
    _, _, _, run = build(overlapping_allreduce=False)
    run(1.0)
    assert run(1.0) == [*BACKWARD, "end", "sum of 6", "sum of 5", "sum of 4", "sum of 7", "votes"]


def test_more_additions_than_usual_are_not_lost() -> None:
    """Buckets leave after the usual number of additions, and once more later; next time the greater number is usual."""
    layers, _, _, run = build()
    run(1.0)
    layers.zero_grad()
    sums = ["sum of 6", "sum of 5", "sum of 4"]
    assert run(1.0, 1.0)[-4:] == ["votes", *sums]
    assert layers.last.grad is not None
    assert torch.equal(layers.last.grad, torch.full((6,), 2 * 20.0))
    assert [event for event in run(1.0, 1.0) if event == "sum of 6"] == ["sum of 6"], "two additions are usual now"


def test_fewer_additions_than_usual_leave_at_the_end() -> None:
    layers, _, _, run = build()
    run(1.0, 1.0)
    layers.zero_grad()
    assert run(1.0) == [*BACKWARD, "end", "sum of 6", "sum of 5", "sum of 4", "sum of 7", "votes"]
    assert layers.last.grad is not None
    assert torch.equal(layers.last.grad, torch.full((6,), 20.0))


def test_a_step_without_a_backward_sends_nothing() -> None:
    _, _, _, run = build()
    assert run() == ["end"]


def test_a_parameter_that_nobody_used_keeps_its_gradient_or_none() -> None:
    layers, _, _, run = build()
    run(1.0)
    assert layers.idle.grad is None
    layers.idle.grad = torch.full((7,), 3.0)
    run(1.0)
    assert torch.equal(layers.idle.grad, torch.full((7,), 3.0))


def test_gradients_add_up_until_the_pass_that_reduces() -> None:
    layers, _, _, run = build(backward_passes_per_step=3)
    assert run(1.0) == [*BACKWARD, "end"]
    assert run(1.0) == [*BACKWARD, "end"]
    assert run(1.0)[-2:] == ["votes", "order"]
    assert layers.last.grad is not None
    assert torch.equal(layers.last.grad, torch.full((6,), 3 * 20.0))
    run(1.0), run(1.0)
    assert run(1.0)[:4] == ["last", "sum of 6", "middle", "sum of 5"]


def test_a_gradient_can_be_a_part_of_its_bucket() -> None:
    layers, reducer, _, run = build(gradient_as_bucket_view=True)
    for _ in range(3):
        layers.zero_grad()
        assert run(1.0, 2.0)[6] == "end", "a sum under way must not be added to"
        for bucket in reducer.buckets[:3]:
            (parameter,) = bucket.parameters
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == bucket.buffer.data_ptr()
        assert layers.last.grad is not None
        assert torch.equal(layers.last.grad, torch.full((6,), 60.0))
    layers.zero_grad(set_to_none=False)
    run(1.0)
    assert torch.equal(layers.last.grad, torch.full((6,), 20.0))


def test_parameters_may_be_frozen_and_thawed_between_steps() -> None:
    layers, _, _, run = build()
    layers.first.requires_grad_(False)
    run(1.0)
    layers.first.requires_grad_(True)
    layers.idle.requires_grad_(False)
    assert "sum of 4" in run(1.0)
    layers.zero_grad()
    assert "sum of 7" not in run(1.0)
    assert layers.first.grad is not None
    assert torch.equal(layers.first.grad, torch.full((4,), 30.0))


def test_replicas_of_other_parameters_are_refused() -> None:
    layers = Layers([])
    with pytest.raises(ParallelError, match="rank 2 and rank 0 hold the same partition of two replicas, but not"):
        Reducer(Twin(same=False), layers.named_parameters, ReductionOptions())


def test_a_sparse_gradient_is_refused() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    reducer = Reducer(Twin(), embedding.named_parameters, ReductionOptions())
    with pytest.raises(ParallelError, match="sparse gradient"), reducer.step():
        embedding(torch.tensor([1])).sum().backward()


def test_a_failure_inside_a_step_is_reported_to_the_others() -> None:
    _, reducer, twin, _ = build()
    with pytest.raises(ZeroDivisionError), reducer.step():
        _ = 1 / 0
    assert [type(failure) for failure in twin.failures] == [ZeroDivisionError]


def doubled(state: list[Any], bucket: Any) -> torch.futures.Future[Any]:
    state.append((bucket.index(), bucket.is_last(), [len(gradient) for gradient in bucket.gradients()]))
    assert [len(parameter) for parameter in bucket.parameters()] == state[-1][2]
    bucket.set_buffer(bucket.buffer().double() * 2)
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def test_a_communication_hook_reduces_instead() -> None:
    layers, reducer, _, run = build()
    seen: list[Any] = []
    reducer.hook = CommHook(seen, doubled)
    assert [event for event in run(1.0) if event.startswith(("sum", "votes"))] == ["votes"]
    assert seen == [(0, False, [7]), (1, False, [5]), (2, False, [4]), (3, True, [6])]
    assert layers.last.grad is not None
    assert torch.equal(layers.last.grad, torch.full((6,), 40.0))


def future_of(result: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda state, bucket: bucket.buffer(), "returned a Tensor; it has to return a torch.futures.Future"),
        (lambda state, bucket: future_of(torch.zeros(1)), "holds a tensor of 1 for a bucket of 7"),
        (lambda state, bucket: future_of(None), "holds a NoneType for a bucket of 7"),
    ],
)
def test_a_hook_that_returns_something_else_is_refused(hook: Any, message: str) -> None:
    _, reducer, _, run = build()
    reducer.hook = CommHook(None, hook)
    with pytest.raises(ParallelError, match=message):
        run(1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0}, {"bucket_cap_mb": "25"}, {"backward_passes_per_step": 0},
        {"backward_passes_per_step": 1.5}, {"broadcast_buffers": 1}, {"overlapping_allreduce": None},
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ParallelError, match=name):
        ReductionOptions(**options)
