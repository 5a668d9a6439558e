"""State that a forward, a hook or the step function keeps: the numbers of one process.

The code of each case (`models.kept`) runs over ranks and as plain torch in one process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.parallel.torch.model_parallel.models import kept, kept_elsewhere, momentum
from tests.parallel.torch.model_parallel.models.kept import ROWS, WIDTH, Net, Placed, Tensor
from tests.parallel.torch.ranks import Ranks

CASES = kept.CASES | kept_elsewhere.CASES | momentum.CASES
BY_HAND = {"auto_partition": False, "default_partition": 0}


def built(name: str, placed: Placed = lambda _: nullcontext(), last: int = 1) -> tuple[Net, list[Tensor]]:
    torch.manual_seed(3)
    net = CASES[name](placed, last).double()
    return net, [torch.randn(ROWS, WIDTH, dtype=torch.float64) for _ in range(net.steps)]


def numbers(left: Any) -> list[list[float]]:
    left = left if isinstance(left, (list, tuple)) else [left]
    return [torch.as_tensor(value, dtype=torch.float64).flatten().tolist() for value in left if value is not None]


def trained(name: str) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    net, batches = built(name, smp.partition, smp.pp_size() - 1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(x: Tensor) -> Tensor:
        return net.step(model, model.backward, x)

    history = []
    for batch in batches:
        net.before()
        optimizer.zero_grad()
        part = batch.chunk(smp.dp_size())[smp.dp_rank()]
        history.append((train(part).stack().tolist(), numbers(net.left())))
        optimizer.step()
    return history, {name: value.tolist() for name, value in model.local_named_parameters()}


def trained_alone(name: str, microbatches: int) -> Any:
    net, batches = built(name)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    history = []
    for batch in batches:
        net.before()
        optimizer.zero_grad()
        losses = [
            net.step(net, lambda loss: (loss / microbatches).backward(), part).item()
            for part in batch.chunk(microbatches)
        ]
        history.append((losses, numbers(net.left())))
        optimizer.step()
    return history, {name: value.tolist() for name, value in net.named_parameters()}


def assert_equal(by_rank: list[Any], alone: Any) -> None:
    expected, weights = alone
    held = {}
    for history, part in by_rank:
        held.update(part)
        for (losses, left), (expected_losses, expected_left) in zip(history, expected, strict=True):
            assert losses == pytest.approx(expected_losses, abs=1e-12)
            if not left:
                continue
            for values, expected_values in zip(left, expected_left, strict=True):
                assert values == pytest.approx(expected_values, abs=1e-12)
    assert set(held) == set(weights)
    for name, value in held.items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(weights[name]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("partitions", "pipeline"), [(2, "interleaved"), (3, "simple")])
def test_kept_state_is_that_of_one_process(ranks: Ranks, name: str, partitions: int, pipeline: str) -> None:
    parameters = {"partitions": partitions, "microbatches": 4, "pipeline": pipeline, **BY_HAND}
    assert_equal(ranks.run(trained, parameters, name), trained_alone(name, 4))


@pytest.mark.parametrize("name", ["Skips", "ResetAfterwards", "Features", "AfterBackward", "Swapped"])
def test_under_zero_bubble(ranks: Ranks, name: str) -> None:
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "zero_bubble", **BY_HAND}
    assert_equal(ranks.run(trained, parameters, name), trained_alone(name, 4))


@pytest.mark.parametrize("name", ["Counters", "Skips", "Weighted", "RunningMeanInPlace", "OtherPlaces", "Swapped"])
def test_the_automatic_partition_leaves_no_sign_in_it(ranks: Ranks, name: str) -> None:
    assert_equal(ranks.run(trained, {"partitions": 2, "microbatches": 4}, name), trained_alone(name, 4))


def turns_of(name: str) -> tuple[str, list[str]]:
    """Return the turns of the second step, and the warnings of the first one."""
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import state

    net, batches = built(name, smp.partition)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        return net.step(model, model.backward, x)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net.before()
        train(batches[0])
    (of_step,) = state.get().kept.values()
    return of_step.turns.name, [str(warning.message) for warning in caught if "backward" in str(warning.message)]


@pytest.mark.parametrize(
    ("name", "turns", "warned"),
    [
        ("Plain", "FREE", ""),
        ("Gate", "PHASES", ""),
        ("Skips", "PHASES", ""),
        ("ResetAfterwards", "WHOLE", "'aux' ("),
        ("Weighted", "WHOLE", "'weight' ("),
        ("Swapped", "PHASES", ""),
        ("AfterBackward", "WHOLE", "'momentum.lerp.a.weight' "),
        ("Through", "WHOLE", "'momentum.lerp.a.weight' "),
    ],
)
def test_microbatches_take_turns_as_the_code_needs_it(ranks: Ranks, name: str, turns: str, warned: str) -> None:
    for chosen, warnings_of_rank in ranks.run(turns_of, {"partitions": 2, "microbatches": 4, **BY_HAND}, name):
        assert chosen == turns
        assert len(warnings_of_rank) == bool(warned)
        assert not warned or warned in warnings_of_rank[0]
        assert not warned.endswith("(") or "models/kept.py:" in warnings_of_rank[0]


def test_replicas_keep_their_own(ranks: Ranks) -> None:
    parameters = {"partitions": 2, "microbatches": 2, "ddp": True, "replicas": 2, **BY_HAND}
    by_rank = ranks.run(trained, parameters, "Skips")
    alone, weights = trained_alone("Skips", 4)
    for history, part in by_rank:
        for (losses, _), (expected, _) in zip(history, alone, strict=True):
            assert set(map(round_off, losses)) <= set(map(round_off, expected))
        for path, value in part.items():
            torch.testing.assert_close(torch.tensor(value), torch.tensor(weights[path]), atol=1e-12, rtol=0)


def round_off(number: float) -> float:
    return round(number, 10)


class Doubling(TorchFunctionMode):
    """Doubles the result of `tanh`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.tanh else result


def in_modes(train: Callable[[], Any]) -> Any:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 1.5, lambda saved: saved)
    with Doubling(), hooks if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks") else nullcontext():
        return train()


def trained_in_modes(name: str) -> Any:
    return in_modes(lambda: trained(name))


def test_modes_around_a_step_count_in_it(ranks: Ranks) -> None:
    parameters = {"partitions": 2, "microbatches": 4, **BY_HAND}
    assert_equal(ranks.run(trained_in_modes, parameters, "Plain"), in_modes(lambda: trained_alone("Plain", 4)))
