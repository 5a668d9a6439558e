"""Calls that belong between steps are refused inside a step, where they would run once for each microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.ranks import Ranks

BETWEEN = "inside a function decorated with @smp.step"


class Net(nn.Module):
    def __init__(self, partitions: int) -> None:
        super().__init__()
        import herringbone_parallel.torch.model_parallel.api as smp

        self.first = nn.Linear(3, 3)
        with smp.partition(partitions - 1):
            self.second = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x))


def outcomes(partitions: int) -> dict[str, str]:
    """Return the error of each call in a step of two microbatches, all in one job."""
    import herringbone_parallel.torch.model_parallel.api as smp

    net = Net(partitions)
    model = smp.DistributedModel(net)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = smp.DistributedOptimizer(inner)
    scaler = smp.amp.GradScaler()
    own = nn.Linear(3, 1)
    own_optimizer = torch.optim.SGD(own.parameters(), lr=0.1)

    def train_something_else() -> None:
        own_optimizer.zero_grad()
        own(torch.ones(3)).sum().backward()
        own_optimizer.step()
        own.zero_grad()

    calls: dict[str, Callable[[], Any]] = {
        "zero_grad": optimizer.zero_grad,
        "step": optimizer.step,
        "inner zero_grad": inner.zero_grad,
        "inner step": inner.step,
        "model.zero_grad": model.zero_grad,
        "module.zero_grad": net.zero_grad,
        "module.zero_grad of a part": net.second.zero_grad,
        "scaler.unscale_": lambda: scaler.unscale_(optimizer),
        "scaler.step": lambda: scaler.step(optimizer),
        "scaler.update": scaler.update,
        "clipping": lambda: smp.clip_grad_norm_(net.parameters(), 1.0),
        "local parameters": lambda: list(model.local_parameters()),
        "grad of a module": lambda: setattr(net.first.weight, "grad", None),
        "own": train_something_else,
    }

    def run(call: Callable[[], Any]) -> str:
        @smp.step
        def train(inputs: torch.Tensor) -> None:
            model.backward(model(inputs).sum())
            call()

        try:
            train(torch.ones(2, 3))
        except ParallelError as error:
            return str(error)
        return "no error"

    return {name: run(call) for name, call in calls.items()}


@pytest.mark.parametrize("partitions", [1, 2])
def test_calls_between_steps_are_refused_inside_a_step(ranks: Ranks, partitions: int) -> None:
    settings = {"partitions": partitions, "microbatches": 2, "auto_partition": False, "default_partition": 0}
    expected = {
        "local parameters": "model.local_parameters() inside a step",
        # With one partition, each parameter is torch's own.
        "grad of a module": "the gradient of parameter 'first.weight' inside a step" if partitions > 1 else "no error",
        "own": "no error",
    }
    for errors in ranks.run(outcomes, settings, partitions):
        for name, error in errors.items():
            assert expected.get(name, BETWEEN) in error, name
