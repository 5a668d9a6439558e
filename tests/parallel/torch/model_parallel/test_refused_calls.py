"""Calls that cannot be served on the values of a distributed model are refused by name, and give no wrong values.

Each call is made in code that runs on every rank, on a value between two placed modules.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from operator import setitem
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import UncapturedHigherOrderOpError

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.model_parallel.models.functions import cube, script
from tests.parallel.torch.ranks import RankFailedError, Ranks

BY_HAND = {"partitions": 2, "microbatches": 1, "auto_partition": False, "default_partition": 0}
WIDTH = 4
Call = Callable[["Between", torch.Tensor], Any]


class Keeps(nn.Linear):
    """Uses a tensor that it was not called with."""

    kept: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.kept


class Between(nn.Module):
    """Two placed modules, with a call of the test between them."""

    call: Call

    def __init__(self) -> None:
        super().__init__()
        import herringbone_parallel.torch.model_parallel.api as smp

        self.first = nn.Linear(WIDTH, WIDTH)
        self.keeps = Keeps(WIDTH, WIDTH)
        with smp.partition(1):
            self.second = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.first(x)
        return self.second(self.call(self, h))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@script
def scripted_write(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


torch.library.define("herringbone_tests::fill", "(Tensor(a!) x) -> ()")
torch.library.impl("herringbone_tests::fill", "CompositeExplicitAutograd", lambda x: setitem(x, ..., 1.0))


def keep(model: Between, h: torch.Tensor) -> torch.Tensor:
    model.keeps.kept = h * 2
    return model.keeps(h)


def set_data(_: Between, h: torch.Tensor) -> torch.Tensor:
    h.data = torch.ones_like(h)
    return h


def functional(model: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(model.first, dict(model.first.named_parameters()), (h,))


def normalised(model: Between, h: torch.Tensor) -> torch.Tensor:
    return nn.functional.batch_norm(h, model.mean, model.variance, training=True)


def closure(_: Between, h: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: (row * h).sum(0))(torch.ones(3, WIDTH))


TRANSFORM = "torch.vmap or torch.func of a tensor or a module of a distributed model"
WHOLE = "torch.compile(fullgraph=True), torch.cond"
# Of torch 2.6, which refuses it itself before it comes to us.
COND = WHOLE if torch.__version__ >= "2.7" else "Cond doesn't work unless it is captured completely"
MEMORY = "its memory is on one rank only"
REFUSED: dict[str, tuple[Call, str]] = {
    "vmap": (lambda _, h: torch.vmap(torch.sin)(h), TRANSFORM),
    "vmap-module": (lambda model, h: torch.vmap(model.second)(h), TRANSFORM),
    "vmap-closure": (closure, TRANSFORM),
    "grad": (lambda _, h: torch.func.grad(lambda x: (x**2).sum())(h), TRANSFORM),
    "jvp": (lambda _, h: torch.func.jvp(torch.sin, (h,), (h,))[1], TRANSFORM),
    "jacrev": (lambda _, h: torch.func.jacrev(torch.sin)(h), TRANSFORM),
    "functional_call": (functional, "torch.func.functional_call of a Linear of a distributed model"),
    "fullgraph": (lambda _, h: torch.compile(torch.sin, backend="eager", fullgraph=True)(h), WHOLE),
    "cond": (lambda _, h: torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,)), COND),
    "below": (
        lambda _, h: h.as_subclass(torch.Tensor),
        "aten.alias.default has reached a tensor of a distributed model",
    ),
    "mark_dirty": (lambda _, h: Doubled.apply(h * 1), "Doubled.apply writes into an argument"),
    "scripted-write": (lambda _, h: scripted_write(h * 1), "scripted_write writes into an argument"),
    "custom-op-write": (
        lambda _, h: torch.ops.herringbone_tests.fill(h.detach() * 1),
        "torch.fill writes into an argument",
    ),
    "batch_norm": (normalised, "batch_norm writes into an argument"),
    "set-data": (set_data, "Tensor.data cannot be used on a tensor of a distributed model"),
    "storage": (lambda _, h: h.untyped_storage().nbytes(), MEMORY),
    "pickle": (lambda _, h: torch.save(h, io.BytesIO()), MEMORY),
    "dlpack": (lambda _, h: torch.from_dlpack(h.detach()), MEMORY),
    "kept-by-a-module": (keep, "a tensor of the step is used in a module's own code, where its gradient would be lost"),
}


def messages() -> dict[str, str]:
    """Return the error of each call, all in one job; a step works again after a refused one."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    net = Between()
    model = smp.DistributedModel(net)
    train = smp.step(lambda inputs: model.backward(model(inputs).sum()))
    errors = {}
    for name, (call, _) in REFUSED.items():
        net.call = call
        try:
            train(torch.randn(2, WIDTH))
        except (ParallelError, UncapturedHigherOrderOpError) as error:
            errors[name] = str(error)
    net.call = lambda _, h: cube(h)
    train(torch.randn(2, WIDTH))
    return errors


def test_every_other_way_out_of_the_function_protocol_is_refused_by_name(ranks: Ranks) -> None:
    by_rank = ranks.run(messages, dict(BY_HAND))
    for name, (_, message) in REFUSED.items():
        for errors in by_rank:
            assert message in errors.get(name, "no error"), name


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = script(nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, WIDTH)


def scripted_part() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.DistributedModel(Scripted())


def test_a_scripted_module_is_refused_by_its_path(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=re.escape("module 'body' is made by torch.jit")):
        ranks.run(scripted_part, dict(BY_HAND))
