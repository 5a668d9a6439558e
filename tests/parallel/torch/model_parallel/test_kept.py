"""State that a forward, a hook or the step function keeps: the numbers of one process.

Each case is a model and a step function. The same code runs over ranks and as plain torch in one process.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.ranks import Ranks

BY_HAND = {"auto_partition": False, "default_partition": 0}
WIDTH, ROWS, STEPS = 4, 8, 4
Tensor = torch.Tensor
Placed = Callable[[int], AbstractContextManager[None]]


class Net(nn.Module):
    """Modules of three partitions (of two, the third one is on the second); `forward` is the case's."""

    def __init__(self, placed: Placed, last: int) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        with placed(1):
            self.b = nn.Linear(WIDTH, WIDTH)
        with placed(last):
            self.c = nn.Linear(WIDTH, WIDTH)
        self.start()

    def start(self) -> None:
        """Make what the case keeps."""

    def hidden(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    def step(self, model: nn.Module, backward: Callable[[Tensor], None], x: Tensor) -> Tensor:
        loss = self.loss(model, x)
        backward(loss)
        return loss

    def before(self) -> None:
        """Run before each step."""

    def left(self) -> Any:
        """Return what stays after a step; nothing where it is not on this rank."""


class Plain(Net):
    """Keeps nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)


class Gate(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.gate = x[:, :1] * 10
        return self.hidden(x) * self.gate

    def left(self) -> Any:
        return self.gate


class GateOfValue(Net):
    """The gate has its data on one rank; what stays has it on all."""

    def forward(self, x: Tensor) -> Tensor:
        self.gate = self.a(x).sigmoid()
        return self.hidden(x) * self.gate

    def left(self) -> Any:
        return self.gate


class LateGate(Net):
    """The gate is not there in the first steps."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.calls < 2:
            return self.hidden(x)
        self.gate = x[:, :1] * 10
        return self.hidden(x) * self.gate

    def before(self) -> None:
        self.calls += 1


class Mask(Net):
    """The mask is handed down to another module, which reads it in its own forward."""

    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.mask

    def start(self) -> None:
        self.b.__class__ = Mask.Masked

    def forward(self, x: Tensor) -> Tensor:
        self.b.mask = (x[:, :1] > 0) + 0.5
        return self.hidden(x)


class Auxiliary(Net):
    """A loss that layers add up, and that the script resets before the step."""

    aux: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.aux = 0.0
        for layer in (self.a, self.b, self.c):
            x = torch.tanh(layer(x))
            self.aux = self.aux + x.abs().mean()
        return x

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return super().loss(model, x) + 0.1 * self.aux

    def left(self) -> Any:
        return self.aux


class ResetAfterwards(Auxiliary):
    """The step function resets the loss after the backward, and the forward does not."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b, self.c):
            x = torch.tanh(layer(x))
            self.aux = self.aux + x.abs().mean()
        return x

    def step(self, model: nn.Module, backward: Callable[[Tensor], None], x: Tensor) -> Tensor:
        loss = super().step(model, backward, x)
        self.aux = 0.0
        return loss


class Skips(Net):
    """Skip connections in a dict, a list that each forward clears, and a dict in a list."""

    def start(self) -> None:
        self.features: dict[str, Any] = {}
        self.cleared: list[Any] = []
        self.nested: list[dict[str, Any]] = [{}]

    def forward(self, x: Tensor) -> Tensor:
        self.cleared.clear()
        self.features["x"], self.nested[0]["x"] = x * 2, x.sign()
        h = torch.tanh(self.a(x))
        self.cleared.append(h)
        self.features["h"] = h
        h = torch.tanh(self.b(h))
        h = self.c(h * self.cleared[0] + self.nested[0]["x"])
        return h + self.features["h"] * self.features["x"]

    def left(self) -> Any:
        return [*self.features.values(), *self.cleared, *self.nested[0].values()]


class Hook(Net):
    """A forward hook keeps values in a variable of its function, and counts in another one."""

    def start(self) -> None:
        seen: dict[str, Any] = {}
        calls = 0

        def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            seen["input"] = args[0]
            return output * calls

        self.register_forward_pre_hook(lambda _, args: seen.update(before=args[0]))
        self.register_forward_hook(hook)
        self.seen = lambda: [*seen.values(), calls]

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x) * self.seen()[0]

    def left(self) -> Any:
        return self.seen()


FACTOR: Any = 1.0


class Global(Net):
    def forward(self, x: Tensor) -> Tensor:
        global FACTOR
        FACTOR = x[:, :1] + 1.0
        return self.hidden(x) * FACTOR

    def left(self) -> Any:
        return FACTOR


class Counters(Net):
    """Counters on the module, on its class, in a namespace and in a variable, which scale the output."""

    of_class = 0

    def start(self) -> None:
        Counters.of_class = 0
        self.calls, self.kept, self.by_name = 0, types.SimpleNamespace(calls=0), {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        Counters.of_class += 1
        h = self.hidden(x)
        self.kept.calls += self.calls
        self.by_name["calls"] += 1
        return h * (self.calls + self.kept.calls + self.by_name["calls"] + Counters.of_class) / 100

    def left(self) -> Any:
        return [self.calls, self.kept.calls, self.by_name["calls"], Counters.of_class]


class RunningMean(Net):
    """A running mean of a value of another rank: a plain tensor, and a buffer, both assigned anew."""

    def start(self) -> None:
        self.mean = torch.zeros(WIDTH, dtype=torch.float64)
        self.register_buffer("mean_of_buffer", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        self.mean_of_buffer = 0.9 * self.mean_of_buffer + 0.1 * h.detach().mean(0)
        return h - self.mean - self.mean_of_buffer

    def left(self) -> Any:
        return [self.mean, self.mean_of_buffer]


class RunningMeanInPlace(Net):
    def start(self) -> None:
        self.mean = torch.zeros(WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return h * self.mean.clone()

    def left(self) -> Any:
        return self.mean


class Weighted(Net):
    """After its backward a microbatch leaves the weight of the next one's loss, and adds to lists of the script."""

    def start(self) -> None:
        self.weight, self.losses = 1.0, []

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)

    def step(self, model: nn.Module, backward: Callable[[Tensor], None], x: Tensor) -> Tensor:
        loss = super().step(model, backward, x * self.weight)
        self.weight = 0.5 * self.weight + loss.item()
        self.losses.append(loss.item())
        return loss

    def left(self) -> Any:
        return [self.weight, *self.losses]


class Gradients(Net):
    """Hooks keep gradients: of a module, of a tensor of the script, and the count of both."""

    def start(self) -> None:
        self.gradients: dict[str, Any] = {}
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.ones(WIDTH, dtype=torch.float64, requires_grad=True)

        def keep(gradient: Tensor) -> None:
            self.gradients["scale"] = gradient
            self.count += 1

        scale.register_hook(keep)
        return self.c(self.b(self.a(x * scale)))

    def left(self) -> Any:
        return [self.count, len(self.gradients)] if self.count else []


class Noisy(nn.Linear):
    """Keeps a loss of its own, which starts as a number, and counts its calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.penalty: Any = 0.0
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out = super().forward(x)
        self.penalty = out.square().mean() * self.calls
        return out


class LossesOfBlocks(Net):
    """Blocks of one rank keep losses, which the step function adds up."""

    def start(self) -> None:
        self.b, self.c = (self.placed_as(old) for old in (self.b, self.c))

    def placed_as(self, old: nn.Module) -> Noisy:
        new = Noisy(WIDTH, WIDTH)
        vars(new).update({key: value for key, value in vars(old).items() if key.startswith("_smp")})
        return new

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x)

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return super().loss(model, x) + 0.1 * sum(block.penalty for block in (self.b, self.c))

    def left(self) -> Any:
        return [self.b.penalty, self.c.penalty]


class Checkpointed(LossesOfBlocks):
    def hidden(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        h = torch.tanh(checkpoint(self.b, torch.tanh(self.a(x)), use_reentrant=False))
        return checkpoint(self.c, h, use_reentrant=False)

    def start(self) -> None:
        super().start()
        for block in (self.b, self.c):
            block.register_forward_pre_hook(lambda block, _: setattr(block, "calls", 0))


class Features(Net):
    """Hooks of blocks put outputs into a dict and a list, which the loss reads."""

    def start(self) -> None:
        features: dict[str, Tensor] = {}
        listed: list[Tensor] = []
        for name, block in self.named_children():
            block.register_forward_hook(lambda _, args, out, name=name: features.update({name: out}))
            block.register_forward_hook(lambda _, args, out: listed.append(args[0] * 2))
        self.extracted = lambda: (features, listed)

    def forward(self, x: Tensor) -> Tensor:
        self.extracted()[1].clear()
        return self.hidden(x)

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        loss = super().loss(model, x)
        features, listed = self.extracted()
        return loss + 0.1 * sum(value.abs().mean() for value in (*features.values(), *listed))

    def left(self) -> Any:
        features, listed = self.extracted()
        return [*features.values(), *listed]


CASES: dict[str, type[Net]] = {
    case.__name__: case
    for case in (
        Plain, Gate, GateOfValue, LateGate, Mask, Auxiliary, ResetAfterwards, Skips, Hook, Global, Counters, RunningMean,
        RunningMeanInPlace, Weighted, Gradients, LossesOfBlocks, Checkpointed, Features,
    )
}  # fmt: skip


def built(name: str, placed: Placed = lambda _: nullcontext(), last: int = 1) -> tuple[Net, list[Tensor]]:
    torch.manual_seed(3)
    net = CASES[name](placed, last).double()
    return net, [torch.randn(ROWS, WIDTH, dtype=torch.float64) for _ in range(STEPS)]


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


@pytest.mark.parametrize("name", ["Skips", "ResetAfterwards", "Features"])
def test_under_zero_bubble(ranks: Ranks, name: str) -> None:
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "zero_bubble", **BY_HAND}
    assert_equal(ranks.run(trained, parameters, name), trained_alone(name, 4))


@pytest.mark.parametrize("name", ["Counters", "Skips", "Weighted", "RunningMeanInPlace"])
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
    (kept,) = state.get().kept.values()
    return kept.turns.name, [str(warning.message) for warning in caught if "backward" in str(warning.message)]


@pytest.mark.parametrize(
    ("name", "turns", "warned"),
    [
        ("Plain", "FREE", ""),
        ("Gate", "PHASES", ""),
        ("Skips", "PHASES", ""),
        ("ResetAfterwards", "WHOLE", "'aux' ("),
        ("Weighted", "WHOLE", "'weight' ("),
    ],
)
def test_microbatches_take_turns_as_the_code_needs_it(ranks: Ranks, name: str, turns: str, warned: str) -> None:
    for chosen, warnings_of_rank in ranks.run(turns_of, {"partitions": 2, "microbatches": 4, **BY_HAND}, name):
        assert chosen == turns
        assert len(warnings_of_rank) == bool(warned)
        assert not warned or (warned in warnings_of_rank[0] and "test_kept.py:" in warnings_of_rank[0])


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
