"""Code outside of steps that looks at all parameters, of which a rank has a part: clipping, averages of weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import Ranks

BY_HAND = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}
STEPS, LIMIT, DECAY = 3, 0.05, 0.9


def distributed() -> tuple[Any, Any, nn.Module, torch.Tensor]:
    """Return the library, the model, its module and the inputs: two of the four layers are on each rank."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Residual", torch.float64)
    for path, index in (("first", 0), ("second", 1), ("third", 1), ("head", 0)):
        smp.set_partition(module.get_submodule(path), index)
    return smp, smp.DistributedModel(module), module, inputs


def clipped() -> Any:
    """Train with torch's own clipping, and average the weights of this rank; return norms, weights and averages."""
    smp, model, _, inputs = distributed()
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    train = smp.step(lambda inputs: model.backward(model(inputs).square().mean()))
    norms, averages = [], {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        train(inputs)
        norms.append(clip_grad_norm_(model.parameters(), LIMIT, error_if_nonfinite=True).item())
        optimizer.step()
        average(averages, model.local_named_parameters())
    for parameter in model.local_parameters():
        parameter.grad.fill_(torch.inf)
    with pytest.raises(RuntimeError, match=r"the total norm of order 2.0 of the gradients is (inf|nan)"):
        clip_grad_norm_(model.parameters(), LIMIT, error_if_nonfinite=True)
    # Parameters of no distributed model are torch's own matter, whatever was replaced.
    own = nn.Parameter(torch.zeros(2))
    own.grad = torch.ones(2)
    assert clip_grad_norm_([own], 1.0) == pytest.approx(2**0.5)
    weights = {name: parameter.detach() for name, parameter in model.local_named_parameters()}
    return norms, weights, averages


def clipped_alone() -> Any:
    module, inputs, _ = models.build("Residual", torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    norms, averages = [], {}
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in inputs.chunk(2):
            (module(part).square().mean() / 2).backward()
        norms.append(clip_grad_norm_(module.parameters(), LIMIT).item())
        optimizer.step()
        average(averages, module.named_parameters())
    return norms, dict(module.named_parameters()), averages


def average(averages: dict[str, torch.Tensor], parameters: Any) -> None:
    with torch.no_grad():
        for name, parameter in parameters:
            averages.setdefault(name, parameter.clone()).mul_(DECAY).add_(parameter, alpha=1 - DECAY)


def test_torch_s_clipping_and_averages_of_local_parameters_are_those_of_one_process(ranks: Ranks) -> None:
    norms, weights, averages = clipped_alone()
    by_rank = ranks.run(clipped, dict(BY_HAND))
    assert sorted(name for rank in by_rank for name in rank[1]) == sorted(weights)
    for rank_norms, rank_weights, rank_averages in by_rank:
        assert min(norms) > LIMIT, "every step is clipped"
        assert rank_norms == pytest.approx(norms, abs=1e-12)
        for name in rank_weights:
            torch.testing.assert_close(rank_weights[name], weights[name].detach(), atol=1e-12, rtol=0)
            torch.testing.assert_close(rank_averages[name], averages[name], atol=1e-12, rtol=0)


def refusals() -> dict[str, str]:
    smp, model, module, inputs = distributed()
    early = AveragedModel(module)
    shadow = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    smp.step(lambda inputs: model.backward(model(inputs).sum()))(inputs)
    # Loops that read no values go on as they are.
    for parameter in model.parameters():
        assert parameter.numel() == parameter.shape.numel()
        assert "Parameter" in repr(parameter)
        if parameter.grad is not None:
            parameter.grad.zero_()
        parameter.requires_grad_(True).requires_grad = True
    model.zero_grad()
    total = getattr(torch.nn.utils, "get_total_norm", None)

    def own_weight_in_a_step(_: torch.Tensor) -> None:
        torch.relu(module.first.weight)
        torch.relu(module.second.weight)

    smp.step(lambda inputs: model.backward(model(inputs).sum()))(inputs)
    parameters = list(model.parameters())
    calls = {
        "average": lambda: average(shadow, module.named_parameters()),
        "update_parameters": lambda: early.update_parameters(module),
        "state_dict": lambda: pickle.dumps(module.state_dict()),
        "vector": lambda: torch.nn.utils.parameters_to_vector(model.parameters()).tolist(),
        "norm": lambda: sum(parameter.norm() for parameter in model.parameters()).item(),
        "branch": lambda: [parameter.zero_() for parameter in model.parameters() if parameter.data.max() > 1],
        "lists": lambda: torch._foreach_add_(list(shadow.values())[: len(parameters)], parameters),
        "saved": lambda: pickle.dumps([parameter.data for parameter in model.parameters()]),
        "step": lambda: smp.step(own_weight_in_a_step)(inputs),
        "mixed": lambda: clip_grad_norm_([*model.parameters(), nn.Parameter(torch.ones(1))], 1.0),
        "total": lambda: total([parameter.grad for parameter in model.parameters() if parameter.grad is not None]),
    }
    errors = {}
    for name, call in calls.items():
        if name == "total" and total is None:
            continue
        try:
            call()
        except ParallelError as error:
            errors[name] = str(error)
    return errors


def test_values_of_other_ranks_are_refused_by_name(ranks: Ranks) -> None:
    by_rank = ranks.run(refusals, dict(BY_HAND))
    for rank, errors in enumerate(by_rank):
        for name in (
            "average",
            "update_parameters",
            "state_dict",
            "vector",
            "norm",
            "branch",
            "lists",
            "saved",
            "step",
        ):
            assert "the values of parameter '" in errors[name] or "pipeline rank" in errors[name], name
        assert f"are on pipeline rank {1 - rank}" in errors["average"]
        assert "model.local_named_parameters()" in errors["average"]
        assert "together with others" in errors["mixed"]
        if hasattr(torch.nn.utils, "get_total_norm"):
            assert "smp.clip_grad_norm_(model.parameters(), math.inf)" in errors["total"]


def change(parameters: list[nn.Parameter], number: int) -> None:
    """Change all parameters, as a script does between steps."""
    torch.manual_seed(number)
    for parameter in parameters:
        parameter.data.clamp_(-0.3, 0.3)
        parameter.data[parameter.data.abs() < 0.01] = 0
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.01)
            parameter.div_(parameter.norm().clamp(min=1.0))
        if number == 1 and parameter.dim() == 2:
            # The first two draw nothing for a tensor on `meta`, and the third one as often as a value is out of bounds.
            for fill in (nn.init.orthogonal_, nn.init.trunc_normal_, nn.init.kaiming_uniform_):
                fill(parameter)
            parameter.data = parameter.data * 0.5
    torch._foreach_mul_(parameters, 0.99)
    torch.nn.utils.vector_to_parameters(
        torch.rand(sum(p.numel() for p in parameters[:2]), dtype=torch.float64), parameters[:2]
    )


def follow(model: nn.Module, train: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """Train, change the parameters, and average them in copies of the model; return the state dicts of all."""
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if hasattr(model, "local_parameters"):
        import herringbone_parallel.torch.model_parallel.api as smp

        optimizer = smp.DistributedOptimizer(optimizer)
    early, late = copy.deepcopy(model), None
    for number in range(STEPS):
        train()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            change(list(model.parameters()), number)
            late = late or AveragedModel(model)
            late.update_parameters(model)
            for mean, parameter in zip(early.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 1 - DECAY)
    return model.state_dict(), early.state_dict(), late.module.state_dict()


def followed() -> Any:
    smp, model, _, inputs = distributed()
    train = smp.step(lambda inputs: model.backward(model(inputs).square().mean()))
    return follow(model, lambda: train(inputs))


def test_changes_of_all_parameters_and_copies_of_the_model_are_those_of_one_process(ranks: Ranks) -> None:
    """Every rank runs the same loop, which had been refused at the first parameter of another rank."""
    module, inputs, _ = models.build("Residual", torch.float64)
    expected = follow(module, lambda: module(inputs).square().mean().backward())
    for states in ranks.run(followed, dict(BY_HAND)):
        for state, alone in zip(states, expected, strict=True):
            torch.testing.assert_close(dict(state), dict(alone), atol=1e-12, rtol=0)
