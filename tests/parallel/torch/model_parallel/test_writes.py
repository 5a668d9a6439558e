"""In-place operations on the values of a distributed model: the numbers of one process, or an error by name.

Each case runs in code of every rank, on a value between two placed modules, and as plain torch in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from herringbone_parallel.torch.model_parallel.runtime.regions import Region, overlap
from tests.parallel.torch.ranks import Ranks

BY_HAND = {"partitions": 2, "microbatches": 1, "auto_partition": False, "default_partition": 0}
WIDTH = 4
Tensor = torch.Tensor


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x, inplace=True)


class WritesFirst(nn.Linear):
    """Writes into its input, and returns another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class WritesArgument(nn.Module):
    """Writes into a parameter that it does not have, in a way that torch does not count."""

    def forward(self, parameter: Tensor) -> Tensor:
        parameter.data.mul_(2)
        return parameter.sum()


class WritesElsewhere(nn.Module):
    """Writes into parameters of another rank that it finds in a list."""

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.listed:
            parameter.data.mul_(2)
        return x * 2


class Between(nn.Module):
    """A module of rank 0, a call of the test, and a module of rank 1; the call may use the other modules."""

    call: Callable[[Between, Tensor], Tensor]

    def __init__(self, placed: Callable[[int], Any]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.writes_here = WritesFirst(WIDTH, WIDTH)
        with placed(1):
            self.second = nn.Linear(WIDTH, WIDTH)
            self.writes_there = WritesFirst(WIDTH, WIDTH)
        self.relu, self.same, self.flat = Relu(), nn.Identity(), nn.Flatten(0)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        with placed(1):
            self.other = nn.Linear(WIDTH, WIDTH, bias=False)
        self.writes_argument, self.writes_elsewhere = WritesArgument(), WritesElsewhere()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.call(self, self.first(x)))


def after(write: Callable[[Tensor], Any]) -> Callable[[Between, Tensor], Tensor]:
    """Return a call that writes, and goes on with the tensor itself."""

    def call(_: Between, h: Tensor) -> Tensor:
        write(h)
        return h

    return call


def no_grad(write: Callable[[Tensor], Any]) -> Callable[[Between, Tensor], Tensor]:
    """Return a call that writes without gradients, and goes on with the tensor itself."""

    def call(_: Between, h: Tensor) -> Tensor:
        with torch.no_grad():
            write(h)
        return h

    return call


def view_after(view: Callable[[Tensor], Tensor]) -> Callable[[Between, Tensor], Tensor]:
    """Return a call that goes on with a view, after a write to the tensor itself."""

    def call(_: Between, h: Tensor) -> Tensor:
        part = view(h)
        h.mul_(2)
        return part

    return call


def rebound(_: Between, h: Tensor) -> Tensor:
    other = h
    h += 1
    return h + other


def augmented_view(_: Between, h: Tensor) -> Tensor:
    h[:, 0] *= 2
    h[1] += h[0]
    return h


def thirds(_: Between, h: Tensor) -> Tensor:
    whole = h.repeat(1, 3).view(2, 3, WIDTH)
    q, k, v = whole[:, 0], whole[:, 1], whole[:, 2]
    q *= 0.5
    k.add_(1)
    return q * k + v


def temporary(_: Between, h: Tensor) -> Tensor:
    return (h * 2).flatten().relu_().view_as(h)


def detached_sum(_: Between, h: Tensor) -> Tensor:
    total = h.sum().detach()
    total += 1
    return h * total


def accumulator(_: Between, h: Tensor) -> Tensor:
    result = torch.zeros_like(h)
    result[0] = h[0]
    return result + h if result.requires_grad else h


def copied(_: Between, h: Tensor) -> Tensor:
    result = torch.empty_like(h)
    result.copy_(h)
    return result


def indexed(_: Between, h: Tensor) -> Tensor:
    h.index_put_((torch.tensor([0, 1]),), h[0] * 3)
    return h.index_add_(0, torch.tensor([1]), h[:1] * 2)


def out(_: Between, h: Tensor) -> Tensor:
    torch.mul(h, 2, out=h)
    return h


def into_part(_: Between, h: Tensor) -> Tensor:
    row = h[0]
    row.mul_(2)
    h[1] = row
    return h


def assigned_back(_: Between, h: Tensor) -> Tensor:
    row = h[0]
    row *= 2
    h[0] = row
    row += 1
    return h + row


def into_script(_: Between, h: Tensor) -> Tensor:
    mine = torch.zeros(2, WIDTH)
    mine.add_(h)
    return mine


def shares_script(_: Between, h: Tensor) -> Tensor:
    mine = torch.ones(2, WIDTH)
    mine.type_as(h).mul_(3)
    return h * mine


def parameters(model: Between, h: Tensor) -> Tensor:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1)
    return h


def whole_parameters(model: Between, h: Tensor) -> Tensor:
    with torch.no_grad():
        model.scale.view(2, 2).mul_(3)
    return h * model.scale


def frozen(write: Callable[[Tensor, Tensor], Any]) -> Callable[[Between, Tensor], Tensor]:
    """Return a call that writes into a parameter that takes no gradients."""

    def call(model: Between, h: Tensor) -> Tensor:
        with torch.no_grad():
            write(next(model.frozen.parameters()), next(model.other.parameters()))
        return model.frozen(h)

    return call


def with_gradients(model: Between, h: Tensor) -> Tensor:
    next(model.frozen.parameters()).copy_(h[0])
    return h


def argument(model: Between, h: Tensor) -> Tensor:
    return h * model.writes_argument(next(model.other.parameters()))


def elsewhere(model: Between, h: Tensor) -> Tensor:
    model.writes_elsewhere.listed = [model.other.weight]
    return model.writes_elsewhere(h)


def module_writes(name: str) -> Callable[[Between, Tensor], Tensor]:
    def call(model: Between, h: Tensor) -> Tensor:
        return model.get_submodule(name)(h) + h

    return call


def crossed(model: Between, h: Tensor) -> Tensor:
    # The other rank has the data already when a module of this rank writes into it.
    there = model.second(h)
    return model.relu(h) + there + h


def relu_then_use(model: Between, h: Tensor) -> Tensor:
    return model.relu(h) * 2 + h


def of_the_same(model: Between, h: Tensor) -> Tensor:
    other = model.same(h)
    other += 1
    return h


def shapes(_: Between, h: Tensor) -> Tensor:
    h = h[:, :3] * 1
    h.t_()
    return nn.functional.pad(h, (0, h.shape[0] - 1))[:2]


STALE = "was changed through another tensor that shares its memory"
PARAMETER = "a parameter of a distributed model inside a step"
# None: the numbers of one process.
CASES: dict[str, tuple[Callable[[Between, Tensor], Tensor], str | None]] = {
    "mul_": (after(lambda h: h.mul_(2)), None),
    "rebound": (rebound, None),
    "setitem": (after(lambda h: h.__setitem__((slice(None), 0), 0)), None),
    "augmented-view": (augmented_view, None),
    "thirds": (thirds, None),
    "temporary": (temporary, None),
    "relu-inplace": (after(lambda h: nn.functional.relu(h, inplace=True)), None),
    "masked_fill_": (after(lambda h: h.masked_fill_(h > 0, 0.5)), None),
    "index_put_": (indexed, None),
    "copy_": (copied, None),
    "accumulator": (accumulator, None),
    "no-grad": (no_grad(lambda h: h.clamp_(-0.1, 0.1)), None),
    "no-grad-setitem": (no_grad(lambda h: h.__setitem__(0, h[1])), None),
    "detached-sum": (detached_sum, None),
    "relu-then-use": (relu_then_use, None),
    "select": (after(lambda h: h[0].mul_(2)), STALE),
    "slice": (after(lambda h: h[:, 1:].mul_(2)), STALE),
    "view": (after(lambda h: h.view(-1).mul_(2)), STALE),
    "reshape": (after(lambda h: h.reshape(-1).add_(1)), STALE),
    "transpose": (after(lambda h: h.transpose(0, 1).mul_(2)), STALE),
    "T": (after(lambda h: h.T.mul_(2)), STALE),
    "diagonal": (after(lambda h: h.diagonal().zero_()), STALE),
    "chunk": (after(lambda h: h.chunk(2)[1].mul_(2)), STALE),
    "unbind": (after(lambda h: h.unbind()[0].mul_(2)), STALE),
    "iteration": (after(lambda h: [row.mul_(2) for row in h]), STALE),
    "narrow-copy_": (after(lambda h: h.narrow(1, 0, 2).copy_(torch.zeros(2, 2))), STALE),
    "view-setitem": (after(lambda h: h[0].__setitem__(0, 5.0)), STALE),
    "view-of-view": (after(lambda h: h.view(-1)[1:3].mul_(2)), STALE),
    "contiguous": (after(lambda h: h.contiguous().mul_(2)), STALE),
    "detach": (no_grad(lambda h: h.detach().mul_(2)), STALE),
    "data": (after(lambda h: h.data.mul_(2)), STALE),
    "view-of-data": (after(lambda h: h.data.view(-1).mul_(2)), STALE),
    "no-grad-view": (no_grad(lambda h: h[0].mul_(2)), STALE),
    "module-same": (of_the_same, STALE),
    "older-view": (view_after(lambda h: h[:, :]), STALE),
    "older-row": (view_after(lambda h: h[0].expand(2, WIDTH)), STALE),
    "into-part": (into_part, STALE),
    "assigned-back": (assigned_back, STALE),
    "module-writes-here": (crossed, STALE),
    "module-writes-there": (module_writes("writes_there"), STALE),
    "out": (out, "out=) is not supported"),
    "set-data": (after(lambda h: setattr(h, "data", h * 2)), "Tensor.data cannot be used"),
    "into-script": (into_script, "into a tensor that every rank has its own copy of"),
    "shares-script": (shares_script, "shares its memory with a tensor of the script"),
    "parameters": (parameters, PARAMETER),
    "view-of-a-parameter": (whole_parameters, PARAMETER),
    "frozen": (frozen(lambda k, q: k.data.mul_(0.5).add_(q.data)), None),
    "trained-data": (lambda model, _: setattr(next(model.parameters()), "data", torch.ones(4, 4)), PARAMETER),
    "frozen-view": (frozen(lambda k, _: k.view(-1).mul_(2)), PARAMETER),
    "frozen-alias": (frozen(lambda k, q: setattr(k, "data", q.data)), "with the memory of another parameter"),
    "frozen-shape": (frozen(lambda k, _: k.unsqueeze_(0)), "changes the shape or type of a parameter"),
    "frozen-with-gradients": (with_gradients, "into a parameter that takes none: call it under torch.no_grad()"),
    "frozen-by-attribute": (
        lambda model, _: model.frozen.weight.data.mul_(2),
        "In a step, take the parameter from named_parameters()",
    ),
    "module-writes-argument": (argument, "writes into a parameter of the model that it gets as an argument"),
    "module-writes-elsewhere": (elsewhere, "are on pipeline rank 1, and not on this one"),
    "t_": (shapes, "t_ changes the shape of a tensor of a distributed model"),
}

Outcome = tuple[Tensor, dict[str, Tensor]] | str


def outcomes() -> dict[str, Outcome]:
    """Return the result and the gradients of this rank for each case, or its error, all in one job."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    net = Between(smp.partition)
    model = smp.DistributedModel(net)

    @smp.step
    def train(inputs: Tensor) -> Tensor:
        scores = model(inputs)
        model.backward(scores.square().sum())
        return scores

    found: dict[str, Outcome] = {}
    for name, (call, _) in CASES.items():
        net.call = call
        model.zero_grad()
        try:
            scores = train(inputs()).concat()
        except Exception as error:  # noqa: BLE001  compared with the expected text
            found[name] = str(error)
            continue
        named = model.local_named_parameters()
        found[name] = (scores, {key: p.grad for key, p in named if p.grad is not None})
    return found


def inputs() -> Tensor:
    return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(5))


def alone(call: Callable[[Between, Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    import contextlib

    torch.manual_seed(3)
    net = Between(lambda _: contextlib.nullcontext())
    net.call = call
    scores = net(inputs())
    scores.square().sum().backward()
    return scores.detach(), {key: p.grad for key, p in net.named_parameters() if p.grad is not None}


def test_a_write_has_the_numbers_of_one_process_or_is_refused_by_name(ranks: Ranks) -> None:
    by_rank = ranks.run(outcomes, dict(BY_HAND))
    wrong = []
    for name, (call, message) in CASES.items():
        for rank, found in enumerate(by_rank):
            outcome = found[name]
            if isinstance(outcome, str):
                if message is None or message not in outcome:
                    wrong.append(f"{name}, rank {rank}: {outcome}")
                continue
            if message is not None:
                wrong.append(f"{name}, rank {rank}: not refused")
                continue
            scores, gradients = alone(call)
            same = torch.allclose(outcome[0], scores) and all(
                torch.allclose(gradient, gradients[key]) for key, gradient in outcome[1].items()
            )
            if not same:
                wrong.append(f"{name}, rank {rank}: other numbers")
        trained = {key for found in by_rank if not isinstance(found[name], str) for key in found[name][1]}
        if message is None and trained != set(alone(call)[1]):
            wrong.append(f"{name}: gradients of {sorted(trained)}")
    assert not wrong, "\n".join(wrong)


def test_regions_overlap_where_they_have_an_element_in_common() -> None:
    whole, row, column = Region((3, 4), (4, 1), 0), Region((4,), (1,), 4), Region((3,), (4,), 2)
    next_column, empty = Region((3,), (4,), 3), Region((0, 4), (4, 1), 4)
    expected = {
        (whole, row): True,
        (row, column): True,
        (column, next_column): False,
        (row, Region((4,), (1,), 8)): False,
        (whole, empty): False,
        (column, column): True,
        (Region((2, 3), (0, 1), 5), row): True,
    }
    assert {pair: overlap(*pair) for pair in expected} == expected
