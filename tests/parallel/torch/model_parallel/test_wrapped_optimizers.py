"""Scales, copies, states and clipping of one or several `smp.DistributedOptimizer`, in the order of a script."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.test_half_precision import DIVIDED, ONE, SCALE, SHARDED, TWO, trainer
from tests.parallel.torch.ranks import Ranks


def load_the_scale_after_a_step() -> tuple[list[float], list[float]]:
    import herringbone_parallel.torch.model_parallel.api as smp

    fields = {"dynamic_loss_scale": True, "init_scale": 1024.0}
    model, optimizer, run = trainer("Chain", **fields)
    saved = optimizer.state_dict()
    saved["loss_scale"] = {**saved["loss_scale"], "scale": 4.0}
    # As the scripts of AWS's later examples resume.
    model.register_post_step_hook(lambda model, optimizer: optimizer.load_state_dict(saved))
    scales, norms = [], []
    for _ in range(2):
        run()
        norms.append(smp.clip_grad_norm_(model.parameters(), 1e9).item())
        # The weights stay, so that both steps have the same gradients.
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        scales.append(optimizer.loss_scale)
    return scales, norms


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_scale_that_is_loaded_after_a_step_leaves_its_gradients_alone(ranks: Ranks, precision: str) -> None:
    """They had been multiplied by the old scale and divided by the loaded one."""
    settings = {"fp16": True} if precision == "fp16" else {}
    ((scales, norms),) = ranks.run(load_the_scale_after_a_step, {**ONE, **settings})
    assert scales == [4.0, 4.0]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def wrap_an_optimizer_with_states(early: bool) -> list[Any]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    smp.set_tensor_parallelism(module)
    model = None if early else smp.DistributedModel(module)
    # The second optimizer's states are made before the first one divides the parameters.
    weights = [parameter for parameter in module.parameters() if parameter.dim() == 2]
    biases = [parameter for parameter in module.parameters() if parameter.dim() == 1]
    inner = [torch.optim.Adagrad(part, lr=0.1) for part in (weights, biases)]
    for adagrad in inner:
        for entry in adagrad.state.values():
            # As a script does that loads a checkpoint into the inner optimizer.
            entry["sum"].fill_(0.25)
    model = model or smp.DistributedModel(module)
    optimizers = [smp.DistributedOptimizer(adagrad) for adagrad in inner]

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    train_step(inputs, target)
    for optimizer in optimizers:
        optimizer.step()
    return [[entry["sum"] for entry in optimizer.state_dict()["state"].values()] for optimizer in optimizers]


TENSOR = {**ONE, "tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True}


@pytest.mark.parametrize(
    ("settings", "early"),
    [
        ({**TWO, "bf16": True}, False),
        ({**SHARDED, "bf16": True}, False),
        ({**DIVIDED, "bf16": True}, False),
        (TENSOR, True),
    ],
    ids=["two", "sharded", "divided", "tensor"],
)
def test_the_states_that_an_optimizer_has_are_kept(ranks: Ranks, settings: dict[str, Any], early: bool) -> None:
    """Those of 16-bit parameters had been dropped, and those of parameters that a tensor group shares stayed whole."""
    (expected,) = ranks.run(wrap_an_optimizer_with_states, {**ONE, "bf16": "bf16" in settings}, early)
    for states in ranks.run(wrap_an_optimizer_with_states, dict(settings), early):
        for sums, alone in zip(states, expected, strict=True):
            for value, other in zip(sums, alone, strict=True):
                assert value.dtype == torch.float32
                assert value.min() >= 0.25
                torch.testing.assert_close(value, other, atol=1e-3, rtol=0)


def clip_for_two_optimizers() -> tuple[list[float], bool, int]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    groups = [[p for p in model.parameters() if p.dim() == dims] for dims in (2, 1)]
    first, second = (smp.DistributedOptimizer(torch.optim.SGD(group, lr=0.1)) for group in groups)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    train_step(inputs, target)
    smp.clip_grad_norm_(model.parameters(), 1e-3)
    copies = [p for optimizer in (first, second) for group in optimizer.param_groups for p in group["params"]]
    norms = [copy.grad.norm().item() for copy in copies]
    first.zero_grad()
    return norms, all(parameter.grad is not None for parameter in groups[1]), len(first._update.masters or ())


def test_each_optimizer_has_copies_of_its_own_parameters_alone(ranks: Ranks) -> None:
    """The second one's gradients had not been clipped, and the first one's `zero_grad` had dropped them."""
    ((norms, kept, copies),) = ranks.run(clip_for_two_optimizers, {**ONE, "bf16": True})
    assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    assert kept
    assert copies == len(norms) // 2


def train_two_optimizers_in_turn() -> list[torch.Tensor]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    groups = [[p for name, p in model.named_parameters() if name.endswith(end)] for end in ("weight", "bias")]
    first, second = (smp.DistributedOptimizer(torch.optim.SGD(group, lr=0.1)) for group in groups)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    for _ in range(2):
        train_step(inputs, target)
        first.step()
        first.zero_grad()
    second.step()
    return list(model.state_dict().values())


def test_an_optimizer_that_clips_leaves_the_gradients_of_another_alone(ranks: Ranks) -> None:
    """The second one's gradients counted as clipped, and the next step was refused."""
    (alone,) = ranks.run(train_two_optimizers_in_turn, {**ONE, "bf16": True})
    for weights in ranks.run(train_two_optimizers_in_turn, {**SHARDED, "sdp_gradient_clipping": 1e9, "bf16": True}):
        torch.testing.assert_close(weights, alone, atol=1e-2, rtol=0)


def clip_values(static: float) -> list[float]:
    model, optimizer, run = trainer("Chain", static_loss_scale=static)
    run()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    optimizer.unscale()
    return [p.grad.abs().max().item() for group in optimizer.param_groups for p in group["params"]]


def test_values_are_clipped_without_the_scale(ranks: Ranks) -> None:
    """Gradients had been clipped with the scale, and were next to nothing without it."""
    (plain,) = ranks.run(clip_values, dict(ONE), 1.0)
    for settings in ({**ONE, "fp16": True}, dict(ONE)):
        (scaled,) = ranks.run(clip_values, settings, SCALE)
        assert scaled == pytest.approx(plain, rel=1e-2)
