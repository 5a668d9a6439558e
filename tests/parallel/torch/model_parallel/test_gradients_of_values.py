"""Gradients of values inside a step: `retain_grad`, `torch.autograd.grad`, and what cannot be served."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.models.gradients import RETAINED
from tests.parallel.torch.model_parallel.test_equality import (
    Trained,
    assert_equal,
    settings,
    train_case,
    train_case_alone,
)
from tests.parallel.torch.ranks import Ranks


def retained(split: str) -> Trained:
    return train_case(RETAINED, split, torch.float64)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("split", "pipeline"), [("scattered", "interleaved"), ("contiguous", "simple")])
def test_retain_grad_gives_the_gradients_of_one_process(ranks: Ranks, split: str, pipeline: str) -> None:
    by_rank = ranks.run(retained, settings(2, 4, pipeline, split), split)
    assert_equal(by_rank, train_case_alone(RETAINED, 4, torch.float64), torch.float64)


def refusals() -> tuple[dict[str, str], list[str]]:
    """Return the error of each call, and the parameters whose hooks have fired in a step of two microbatches."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Residual")
    for path, index in (("first", 0), ("second", 1), ("third", 1), ("head", 0)):
        smp.set_partition(module.get_submodule(path), index)
    model = smp.DistributedModel(module)
    fired: list[str] = []
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    smp.step(lambda inputs: model.backward(model(inputs).sum()))(inputs)

    def crossing(inputs: torch.Tensor) -> None:
        first = module.first(inputs)
        torch.autograd.grad(module.second(first).sum(), first, allow_unused=True)

    def by_parameter(inputs: torch.Tensor) -> None:
        # The parameter is used on both sides of the other rank, and the last part of the graph knows one side.
        scores = module.first(module.second(nn.functional.pad(module.first(inputs), (0, 0)))[:, :6])
        torch.autograd.grad(scores.sum(), module.first.weight)

    def hook(inputs: torch.Tensor) -> None:
        model(inputs).register_post_accumulate_grad_hook(lambda _: None)

    def hook_on_parameter(_: torch.Tensor) -> None:
        next(model.parameters()).register_post_accumulate_grad_hook(lambda _: None)

    calls = {
        "crossing": crossing,
        "by parameter": by_parameter,
        "hook": hook,
        "hook on parameter": hook_on_parameter,
        "backward": lambda inputs: torch.autograd.backward(model(inputs).sum()),
        "retain": lambda inputs: model(inputs).detach().retain_grad(),
        "parameter's grad": lambda inputs: [parameter.grad for parameter in model.parameters()],
    }
    errors = {}
    for name, call in calls.items():
        try:
            smp.step(call)(inputs)
        except ParallelError as error:
            errors[name] = str(error)
    return errors, fired


def test_other_gradients_are_refused_by_name_and_hooks_of_parameters_fire_on_their_rank(ranks: Ranks) -> None:
    by_rank = ranks.run(refusals, {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    for errors, _ in by_rank:
        for name in ("crossing", "by parameter"):
            assert "torch.autograd.grad between tensors of a distributed model needs a graph" in errors[name]
        for name in ("hook", "hook on parameter"):
            assert "register it on the parameter outside of the step" in errors[name]
        assert "call model.backward(loss) instead" in errors["backward"]
        assert "retain_grad() of a tensor that depends on no parameter" in errors["retain"]
        assert "the gradient of a parameter inside a step" in errors["parameter's grad"]
    # Once for each microbatch, as in one process that adds up the gradients of two microbatches.
    assert sorted(by_rank[0][1]) == sorted(2 * ["first.weight", "first.bias", "head.weight", "head.bias"])
    assert sorted(by_rank[1][1]) == sorted(2 * ["second.weight", "second.bias", "third.weight", "third.bias"])


def under_zero_bubble() -> str:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    with pytest.raises(ParallelError) as caught:
        smp.step(lambda inputs: model(inputs).retain_grad())(inputs)
    return str(caught.value)


def test_zero_bubble_refuses_retain_grad(ranks: Ranks) -> None:
    for message in ranks.run(under_zero_bubble, {"partitions": 2, "microbatches": 2, "pipeline": "zero_bubble"}):
        assert "retain_grad() under pipeline 'zero_bubble'" in message
