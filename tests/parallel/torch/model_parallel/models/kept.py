"""Models that keep state from one microbatch to another, each in another place."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

WIDTH, ROWS, STEPS = 4, 8, 4
Tensor = torch.Tensor
Placed = Callable[[int], AbstractContextManager[None]]


class Net(nn.Module):
    """Modules of three partitions (of two, the third one is on the second); `forward` is the case's."""

    steps = STEPS

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
        Plain,
        Gate, GateOfValue, LateGate, Mask, Auxiliary, ResetAfterwards, Skips, Hook, Global, Counters, RunningMean,
        RunningMeanInPlace, Weighted, Gradients, LossesOfBlocks, Checkpointed, Features,
    )
}  # fmt: skip
