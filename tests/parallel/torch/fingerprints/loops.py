"""Training loops of many kinds, each of which returns its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from herringbone_contract.library_hooks import require
from herringbone_contract.rehearsal.records import Step
from herringbone_parallel.torch.fingerprints.recorder import Recorder
from herringbone_parallel.torch.library_hooks import MODEL_PARALLEL
from herringbone_parallel.torch.step_hook import not_counting


class Net(nn.Module):
    """Draws random numbers, keeps running statistics, and computes a part of its forward again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.first, inputs, use_reentrant=False)
        return self.last(nn.functional.dropout(self.norm(hidden), 0.3, self.training))  # type: ignore[no-any-return]


def _data(workers: int = 0) -> DataLoader[Any]:
    inputs = torch.randn(24, 4)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 4, shuffle=True, num_workers=workers)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, call: Callable[..., Any], workers: int = 0) -> nn.Module:
    for inputs, targets in _data(workers):
        optimizer.zero_grad()
        nn.functional.mse_loss(call(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()(inputs)
            model.train()
    return model


def workers() -> nn.Module:
    """Read samples in other processes."""
    model = Net()
    return _train(model, torch.optim.RMSprop(model.parameters()), model, workers=2)


def fused() -> nn.Module:
    """Step by one kernel."""
    model = Net()
    return _train(model, torch.optim.AdamW(model.parameters(), fused=True), model)


def compiled() -> nn.Module:
    """Compile the model; the backend that shows what is traced."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 1))
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    call = torch.compile(model, backend=backend)
    _train(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True), call)
    # One graph, which is not cut, of the model's own operations.
    [graph] = graphs
    assert graph.count("= torch.") == 4, graph
    torch._dynamo.reset()
    return model


def accumulated() -> nn.Module:
    """Step after every second batch."""
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters())
    for number, (inputs, targets) in enumerate(_data()):
        nn.functional.mse_loss(model(inputs), targets).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model


def scaled() -> nn.Module:
    """Scale the loss; the first steps are skipped."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    for inputs, targets in _data():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def adversarial() -> nn.Module:
    """Train two models by turns, each with its optimizer."""
    generator, judge = Net(), Net()
    first, second = (torch.optim.Adam(model.parameters(), 0.01) for model in (judge, generator))
    inner = nn.Linear(1, 4)
    for inputs, _ in _data():
        made = inner(generator(inputs))
        first.zero_grad()
        (judge(inputs) - judge(made.detach())).mean().backward()
        first.step()
        second.zero_grad()
        judge(made).mean().backward()
        second.step()
    return nn.ModuleList([generator, judge])


def closures() -> nn.Module:
    """Have the optimizer compute the loss, several times in a step."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for inputs, targets in _data():

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
    return model


def sparse() -> nn.Module:
    """Give an embedding sparse gradients."""
    model = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randint(9, (5,))).square().sum().backward()
        optimizer.step()
    return model


def changed() -> nn.Module:
    """Add a layer between two steps, and set weights by hand."""
    model = nn.Sequential(nn.Linear(4, 4))
    for number in range(3):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        model.append(nn.Linear(4, 4))
        with torch.no_grad():
            model[number].bias.add_(1)
    return model


def functional() -> nn.Module:
    """Call no module, and hold a parameter on the meta device."""
    weight, meta = nn.Parameter(torch.randn(4)), nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [meta], "lr": 0.5}], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (torch.randn(4) * weight).sum().backward()
        optimizer.step()
    return nn.ParameterList([weight])


def averaged() -> nn.Module:
    """Keep an average of the weights."""
    model = nn.Linear(4, 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    return average


def restored() -> nn.Module:
    """Read the optimizer's state before the first step, for which torch makes a step of zeros."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        get_optimizer_state_dict(model, optimizer)
        # Libraries probe their hooks, by a backward of their own.
        require(MODEL_PARALLEL)
        with not_counting():
            # A measurement of the library's own.
            other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
            (model(torch.ones(1, 4)).sum() * other.param_groups[0]["params"][0]).sum().backward()
            model.zero_grad()
            other.step()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    return model


LOOPS = [
    workers,
    fused,
    compiled,
    accumulated,
    scaled,
    adversarial,
    closures,
    sparse,
    changed,
    functional,
    averaged,
    restored,
]


def record(sender: Any) -> None:
    """Run all loops twice, the second time with records; send these, and whether the bits are equal, by loop."""
    torch.set_num_threads(1)
    before = {loop.__name__: state(loop) for loop in LOOPS}
    steps: list[Step] = []
    recorder = Recorder(lambda step, _: steps.append(step))
    recorder.watch()
    for loop in LOOPS:
        steps.clear()
        recorder.begin(recorder._send)
        is_same = state(loop) == before[loop.__name__]
        sender.send((loop.__name__, is_same, msgspec.json.encode(steps)))


def state(loop: Callable[[], nn.Module]) -> list[bytes]:
    """Run a loop; return the bits of its model, and of the random numbers that come next."""
    torch.manual_seed(1)
    tensors = [*loop().state_dict().values(), torch.get_rng_state()]
    return [tensor.detach().flatten().view(torch.uint8).numpy().tobytes() for tensor in tensors if tensor.numel()]
