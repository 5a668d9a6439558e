"""Scripts of version 1 of model parallelism: measured whole, with the costs that the library itself would measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import herringbone_parallel.torch.model_parallel.api as smp  # noqa: E402
from herringbone_parallel.core.partition.costs import CostNode, CostTree  # noqa: E402
from herringbone_parallel.core.partition.decide import decide  # noqa: E402
from herringbone_parallel.core.prediction.measurement import Kind  # noqa: E402
from herringbone_parallel.torch.measure.environment import measured_environment  # noqa: E402
from herringbone_parallel.torch.measure.recorder import Recorder  # noqa: E402
from herringbone_parallel.torch.measure.result import Facts  # noqa: E402
from herringbone_parallel.torch.measure.stand_ins.groups import alone  # noqa: E402
from herringbone_parallel.torch.measure.stand_ins.pipeline import whole_model  # noqa: E402
from tests.parallel.torch.measure.scripts import Words, bytes_by_kind, measured  # noqa: E402


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def set_parameters(parameters: str) -> None:
        monkeypatch.setenv("SM_HP_MP_PARAMETERS", parameters)
        for name, value in measured_environment({"SM_HP_MP_PARAMETERS": parameters}, ranks=2).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    yield set_parameters
    smp.shutdown()


def train(steps: int = 2) -> None:
    torch.manual_seed(0)
    smp.init()
    model = smp.DistributedModel(Words())
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters()))

    @smp.step
    def step(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        model.backward(loss)
        return loss

    for _ in range(steps):
        optimizer.zero_grad()
        assert step(model, torch.randint(0, 1000, (32, 16))).reduce_mean().item() < 1e9
        optimizer.step()


def test_costs_are_those_of_the_library(job: Callable[[str], None]) -> None:
    job('{"partitions": 2, "microbatches": 4}')
    measurement = measured(train, ranks=2, pipelined=True)
    smp.shutdown()
    facts = Facts()
    with ExitStack() as stack:
        stack.enter_context(alone(2))
        # A recorder that watches nothing: the library measures real tensors.
        stack.enter_context(whole_model(Recorder(lambda _: None), facts))
        train(steps=1)
        smp.shutdown()
    assert measurement.tree is not None
    assert facts.tree is not None
    assert figures(measurement.tree) == figures(facts.tree)
    partitions = [decide(tree, 2, memory_weight=0.8).assigned for tree in (measurement.tree, facts.tree)]
    assert partitions[0] == partitions[1]
    assert (measurement.wrapper, measurement.microbatches, measurement.batch) == ("smp", 4, 32)
    assert measurement.modules[0].type == "Words"


def figures(tree: CostTree) -> list[tuple[str, list[int], int, float]]:
    def of(node: CostNode) -> tuple[str, list[int], int, float]:
        return node.path, sorted(node.parameters.values()), node.activation_bytes, node.seconds

    return [of(node) for node in tree.root.walk()]


def test_float32_copies_count_as_state(job: Callable[[str], None]) -> None:
    job('{"partitions": 2, "microbatches": 2, "fp16": true}')
    measurement = measured(train, ranks=2, pipelined=True)
    held = bytes_by_kind(measurement)
    numbers = sum(parameter.numel() for parameter in Words().parameters())
    assert held[Kind.PARAMETER] == 2 * numbers
    # The copy, two moments, and the number of steps of each parameter.
    assert held[Kind.STATE] == 12 * numbers + 4 * len(measurement.parameters)
    assert sum(parameter.state_bytes for parameter in measurement.parameters) == held[Kind.STATE]
