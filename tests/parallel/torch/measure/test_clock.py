"""The clock gives each moment of a step to the module whose code runs."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.data import DataLoader

from herringbone_parallel.torch.measure.clock import Clock, Owner, Part


class Seconds:
    """A clock that stands still but for `take`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, seconds, forward_s, backward_s):  # type: ignore[no-untyped-def]
        seconds.now += forward_s
        ctx.work = seconds, backward_s
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        seconds, backward_s = ctx.work
        seconds.now += backward_s
        return gradient, None, None, None


class Layer(nn.Module):
    """Takes `forward_s` seconds in a forward, and twice as many in a backward."""

    def __init__(self, seconds: Seconds, forward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seconds, self.forward_s = seconds, forward_s

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return _Work.apply(tensor * self.weight, self.seconds, self.forward_s, 2 * self.forward_s)  # type: ignore[no-any-return,no-untyped-call]


class Block(nn.Module):
    """Has work of its own between two layers."""

    def __init__(self, seconds: Seconds, *, recomputes: bool) -> None:
        super().__init__()
        self.first, self.last = Layer(seconds, 1.0), Layer(seconds, 10.0)
        self.seconds, self.recomputes = seconds, recomputes

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = self.first(tensor)
        tensor = _Work.apply(tensor, self.seconds, 100.0, 200.0)  # type: ignore[no-untyped-call]
        if self.recomputes:
            with set_checkpoint_early_stop(False):
                return checkpoint(self.last, tensor, use_reentrant=False)  # type: ignore[no-any-return]
        return self.last(tensor)  # type: ignore[no-any-return]


class Ended(Exception):
    """Ends a script."""


def watched(seconds: Seconds, model: nn.Module, steps: int, *, optimizers: int = 1) -> Clock:
    """Return the clock of a loop that takes a thousand seconds for its loss, and more for its update and batches."""
    numbers = count(1)

    def on_step() -> None:
        if next(numbers) == steps:
            raise Ended

    class Batches:
        def __len__(self) -> int:
            return 99

        def __getitem__(self, index: int) -> torch.Tensor:
            seconds.now += 1e6
            return torch.ones(())

    class Slow(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            seconds.now += 1e5
            super().step()

    clock = Clock(on_step, seconds)
    all_optimizers = [Slow(model.parameters(), lr=0.0) for _ in range(optimizers)]

    def loop() -> None:
        for batch in DataLoader(Batches(), batch_size=None):  # type: ignore[arg-type]
            loss = model(batch.requires_grad_())
            seconds.now += 1000
            loss.backward()
            for optimizer in all_optimizers:
                optimizer.step()

    with clock.watching(), pytest.raises(Ended):
        loop()
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
    return clock


@pytest.mark.parametrize("recomputes", [False, True])
def test_each_module_has_its_own_seconds(recomputes: bool) -> None:
    seconds = Seconds()
    model = Block(seconds, recomputes=recomputes)
    clock = watched(seconds, model, 2)
    plain, detailed = clock.steps
    # Recomputed layers run again in the backward.
    again = 10.0 if recomputes else 0.0
    for step in clock.steps:
        parts = [step.part_s(part) for part in (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.DATA)]
        assert parts == [1111.0, 222.0 + again, 1e5, 1e6]
    assert {owner.module for owner in plain.seconds} == {-1}
    numbers = {module: number for number, module in enumerate(clock.modules)}
    for module, forward_s, backward_s in (
        (model, 100.0, 200.0),
        (model.first, 1.0, 2.0),
        (model.last, 10.0, 20.0 + again),
    ):
        assert detailed.seconds[Owner(Part.FORWARD, numbers[module])] == forward_s
        assert detailed.seconds[Owner(Part.BACKWARD, numbers[module])] == backward_s
    assert detailed.seconds[Owner(Part.FORWARD)] == 1000.0


def test_a_turn_of_a_loop_with_several_optimizers_is_one_step() -> None:
    seconds = Seconds()
    clock = watched(seconds, Block(seconds, recomputes=False), 3, optimizers=2)
    # The first step ends with the first update, and each later one has the second update of the turn before.
    assert [step.part_s(Part.OPTIMIZER) for step in clock.steps] == [1e5, 2e5, 2e5]


def test_an_optimizer_that_another_one_has_replaced_ends_no_turn() -> None:
    seconds, model = Seconds(), nn.Linear(1, 1)
    ended: list[int] = []
    clock = Clock(lambda: ended.append(number), seconds)
    with clock.watching():
        first = torch.optim.SGD(model.parameters(), lr=0.0)
        number = 0
        first.step()
        second = torch.optim.SGD(model.parameters(), lr=0.0)
        for number in range(1, 4):  # noqa: B007  on_step notes it
            second.step()
    assert ended == [0, 2, 3]
