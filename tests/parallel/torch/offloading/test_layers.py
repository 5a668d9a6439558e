"""Inputs of checkpointed layers wait in host memory: same gradients, and at most a horizon of layers on the device."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.offloading import LayerOffloading
from herringbone_parallel.torch.offloading.host_copy import CopyStreams, HostCopy

CPU = torch.device("cpu")
LAYERS, ROWS, WIDTH = 6, 4, 8


class Checkpointed(nn.Module):
    """A layer with dropout that drops its activations; it takes a second input of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x, y: x + self.inner(x + y), hidden, shift, use_reentrant=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Checkpointed() for _ in range(LAYERS))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shift = hidden.new_ones(ROWS, WIDTH)
        for layer in self.layers:
            hidden = layer(hidden, shift)
        return hidden.square().mean()


def gradients(horizon: int | None, passes: int = 1) -> tuple[list[torch.Tensor], LayerOffloading | None]:
    torch.manual_seed(0)
    model = Model()
    offloading = None if horizon is None else LayerOffloading(horizon=horizon, device=CPU)
    if offloading is not None:
        for layer in model.layers:
            offloading.wrap(layer)
    inputs = torch.randn(ROWS, WIDTH, requires_grad=True)
    for _ in range(passes):
        model(inputs).backward()
    assert inputs.grad is not None
    return [
        inputs.grad,
        *(parameter.grad for parameter in model.parameters() if parameter.grad is not None),
    ], offloading


@pytest.mark.parametrize(("horizon", "layers"), [(0, 1), (1, 1), (2, 2), (4, 4), (99, LAYERS)])
def test_gradients_are_the_same_bits_and_the_horizon_is_the_peak(horizon: int, layers: int) -> None:
    expected, _ = gradients(None, passes=2)
    result, offloading = gradients(horizon, passes=2)
    assert len(result) == 1 + 4 * LAYERS
    assert all(torch.equal(one, other) for one, other in zip(result, expected, strict=True))
    assert offloading is not None
    assert offloading.peak_layers == layers
    # Each layer saves two inputs; without offloading, all layers' inputs stay.
    assert offloading.peak_bytes == layers * 2 * ROWS * WIDTH * 4


@pytest.mark.parametrize(("horizon", "layers"), [(None, LAYERS), (1, 1), (2, 2), (4, 4), (99, LAYERS)])
def test_memory_holds_the_inputs_of_as_many_layers_as_the_horizon(horizon: int | None, layers: int) -> None:
    """The memory itself, and not the numbers that the library counts."""
    model, inputs = Model(), []
    offloading = None if horizon is None else LayerOffloading(horizon=horizon, device=CPU)
    for layer in model.layers:
        if offloading is not None:
            offloading.wrap(layer)
        layer.register_forward_pre_hook(lambda _, args: inputs.append(StorageWeakRef(args[0].untyped_storage())))
    loss = model(torch.randn(ROWS, WIDTH, requires_grad=True) * 1)
    assert sum(not memory.expired() for memory in inputs) == layers
    loss.backward()


def test_a_second_backward_through_the_same_graph_loads_again() -> None:
    torch.manual_seed(0)
    model, offloading = Model(), LayerOffloading(horizon=2, device=CPU)
    for layer in model.layers:
        offloading.wrap(layer)
    loss = model(torch.randn(ROWS, WIDTH, requires_grad=True))
    loss.backward(retain_graph=True)
    [once] = [parameter.grad.clone() for parameter in list(model.parameters())[:1] if parameter.grad is not None]
    loss.backward()
    [twice] = [parameter.grad for parameter in list(model.parameters())[:1]]
    assert twice is not None
    torch.testing.assert_close(twice, 2 * once)


def test_calls_without_gradients_and_forgotten_graphs_hold_nothing() -> None:
    model, offloading = Model(), LayerOffloading(horizon=1, device=CPU)
    for layer in model.layers:
        offloading.wrap(layer)
    with torch.no_grad():
        model(torch.randn(ROWS, WIDTH))
    assert offloading.peak_bytes == 0
    model(torch.randn(ROWS, WIDTH, requires_grad=True))
    # The graph of the line above is gone, so the next forward begins with nothing.
    peak = offloading.peak_bytes
    model(torch.randn(ROWS, WIDTH, requires_grad=True)).backward()
    assert offloading.peak_bytes == peak == 2 * ROWS * WIDTH * 4


def test_parameters_and_expanded_tensors_stay_on_the_device() -> None:
    offloading = LayerOffloading(horizon=1, device=CPU)
    weight = nn.Parameter(torch.ones(WIDTH))
    mask = torch.ones(1, WIDTH).expand(1000, WIDTH)
    with offloading.layer():
        result = checkpoint(lambda w, m: (w * m).sum(), weight, mask, use_reentrant=False)
    assert offloading.peak_bytes == 0
    result.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1000.0] * WIDTH


class Streams(CopyStreams):
    """Notes in which order the computation waits for copies, which are numbered as on a device."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.notes: list[str] = []

    def computing(self) -> Any:
        return self

    def wait_event(self, event: str) -> None:
        self.notes.append(f"wait for {event}")

    def to_host(self, source: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return super().to_host(source)[0], "out"

    def to_device(self, host: torch.Tensor) -> tuple[torch.Tensor, Any]:
        copy = super().to_device(host)[0]
        weakref.finalize(copy, self.notes.append, "freed")
        return copy, "back"


@pytest.mark.parametrize("taken", [True, False])
def test_a_loaded_tensor_is_freed_after_its_copy_is_over(taken: bool) -> None:
    streams = Streams()
    copy = HostCopy(torch.ones(3), streams)
    copy.drop_source()
    copy.load()
    if taken:
        copy.take()
    del copy
    assert streams.notes == ["wait for out", "wait for back", "freed"]


def test_a_write_into_a_saved_input_is_refused_by_name() -> None:
    copy = HostCopy(tensor := torch.ones(3), CopyStreams(CPU))
    tensor.add_(1)
    with pytest.raises(ParallelError, match=r"shape \[3\].*changed.*clone\(\)"):
        copy.drop_source()
