"""`offload_activations` in a pipeline: gradients of the same bits, and no more activations than the horizon allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from herringbone_parallel.core.pipeline.offloading import peak, task_order
from tests.parallel.torch.ranks import Ranks

PARTITIONS, MICROBATCHES, ROWS, WIDTH, LAYERS = 2, 6, 2, 16, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x * shift)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.second = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = x.new_full((ROWS, WIDTH), 0.5)
        for layer in (*self.first, *self.second):
            x = layer(x, shift=shift)
        return x


def train(checkpointed: bool) -> Any:
    """Return the gradients of two steps, and the bytes of the second step's offloading."""
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_parallel.torch.model_parallel import step

    torch.manual_seed(3)
    net = Net()
    for part in (net.first, net.second):
        smp.set_partition(part, 0 if part is net.first else 1)
    model = smp.DistributedModel(net)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if checkpointed:
        for layer in (*net.first, *net.second):
            smp.set_activation_checkpointing(layer)
    made = []
    make = step.offloading_of_step

    def kept(library: Any) -> Any:
        made.append(make(library))
        return made[-1]

    step.offloading_of_step = kept

    @smp.step
    def train_step(batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).square().mean()
        model.backward(loss)
        return loss

    try:
        inputs = torch.randn(MICROBATCHES * ROWS, WIDTH)
        for _ in range(2):
            optimizer.zero_grad()
            loss = train_step(inputs).reduce_mean()
            optimizer.step()
    finally:
        step.offloading_of_step = make
    gradients = [parameter.grad.tolist() for parameter in model.local_parameters() if parameter.grad is not None]
    used = made[-1]
    return loss.item(), gradients, (0, 0) if used is None else (used.peak_bytes, used.saved_bytes)


@pytest.mark.parametrize(
    ("pipeline", "horizon"), [("simple", 0), ("simple", 2), ("interleaved", 1), ("zero_bubble", 1)]
)
def test_gradients_are_the_same_bits_and_the_peak_follows_the_horizon(
    ranks: Ranks, pipeline: str, horizon: int
) -> None:
    parameters = {
        "partitions": PARTITIONS,
        "microbatches": MICROBATCHES,
        "pipeline": pipeline,
        "auto_partition": False,
        "default_partition": 0,
    }
    plain = ranks.run(train, parameters, True)
    offloaded = ranks.run(
        train, {**parameters, "offload_activations": True, "activation_loading_horizon": horizon}, True
    )
    for rank, (expected, result) in enumerate(zip(plain, offloaded, strict=True)):
        assert result[:2] == expected[:2]
        peak_bytes, saved_bytes = result[2]
        assert saved_bytes > 0
        # Each microbatch saves the same bytes. While one runs its forward, its own are there, too.
        order = task_order(
            rank=rank, partitions=PARTITIONS, microbatches=MICROBATCHES, pipeline=pipeline, active=PARTITIONS + 2
        )
        most = peak(order, horizon)
        assert peak_bytes <= (most + 1) * saved_bytes / MICROBATCHES
        if pipeline == "simple":
            assert peak_bytes < peak(order, None) * saved_bytes / MICROBATCHES


def warnings_of(checkpointed: bool) -> list[list[str]]:
    """Return the warnings of a step without gradients, and of two steps with a backward."""
    import warnings

    import herringbone_parallel.torch.model_parallel.api as smp

    net = Net()
    if checkpointed:
        for layer in (*net.first, *net.second):
            smp.set_activation_checkpointing(layer)
    model = smp.DistributedModel(net)

    @smp.step
    def evaluate(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    @smp.step
    def train_step(batch: torch.Tensor) -> None:
        model.backward(model(batch).square().mean())

    texts = []
    for run in (torch.no_grad()(evaluate), train_step, train_step):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(torch.randn(2 * ROWS, WIDTH))
        texts.append([str(warning.message)[:25] for warning in caught])
    return texts


@pytest.mark.parametrize(("partitions", "checkpointed"), [(1, True), (2, True), (2, False)])
def test_a_rank_without_inputs_to_move_warns_after_its_first_backward(
    ranks: Ranks, partitions: int, checkpointed: bool
) -> None:
    parameters = {"partitions": partitions, "microbatches": 2, "offload_activations": True}
    texts, *_ = ranks.run(warnings_of, parameters, checkpointed)
    assert texts == [[], [] if checkpointed else ["offload_activations moves"], []]
