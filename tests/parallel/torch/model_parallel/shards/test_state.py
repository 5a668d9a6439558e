"""State dicts, checkpoints, clipping and loss scaling of a model whose training state is shared."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.shards.training import optimizer_of
from tests.parallel.torch.ranks import RankFailedError, Ranks

SHARD_2 = {
    "partitions": 1,
    "replicas": 2,
    "ddp": True,
    "sharded_data_parallel_degree": 2,
    "sdp_param_persistence_threshold": 0,
}
PIPELINE = {**SHARD_2, "partitions": 2}
DIVIDED = {"partitions": 1, "replicas": 2, "ddp": True, "shard_optimizer_state": True}


def script(name: str = "Tied", **options: Any) -> tuple[Any, Any, Any, Any]:
    """Return the library, the model, the optimizer, and a function that makes a step on this rank's data."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name, torch.float64)
    inputs, target = (tensor.chunk(smp.rdp_size())[smp.rdp_rank()] for tensor in (inputs, target))
    model = smp.DistributedModel(module, **options)
    optimizer = smp.DistributedOptimizer(optimizer_of(model))

    @smp.step
    def train_step(scale: Any, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss * scale)
        return loss

    return smp, model, optimizer, lambda scale=1.0: train_step(scale, inputs, target)


def train(train_step: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        train_step()
        optimizer.step()


def same(one: Any, other: Any) -> bool:
    """Say whether two structures of dicts, lists and tensors have equal values."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def go_on_from_checkpoints(folder: str, partial: bool) -> None:
    smp, model, optimizer, train_step = script()
    train(train_step, optimizer, 2)
    smp.save_checkpoint(folder, tag="two", model=model, optimizer=optimizer, partial=partial)
    before = model.state_dict(), optimizer.state_dict()
    train(train_step, optimizer, 2)
    after = model.state_dict(), optimizer.state_dict()
    # After steps, so that the parameters are divided already.
    smp.resume_from_checkpoint(folder, tag="two", partial=partial)
    assert same((model.state_dict(), optimizer.state_dict())[0], before[0])
    assert same(optimizer.state_dict(), before[1])
    train(train_step, optimizer, 2)
    assert same(list(after), [model.state_dict(), optimizer.state_dict()])


def resume_in_another_layout(folder: str, partial: bool) -> Any:
    smp, model, optimizer, train_step = script()
    smp.resume_from_checkpoint(folder, tag="two", partial=partial)
    train(train_step, optimizer, 2)
    return model.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize("partial", [True, False])
def test_checkpoints_go_on_in_the_same_and_in_another_layout(ranks: Ranks, tmp_path: Path, partial: bool) -> None:
    ranks.run(go_on_from_checkpoints, dict(PIPELINE), str(tmp_path), partial)
    plain = ranks.run(resume_in_another_layout, {"partitions": 1, "microbatches": 2}, str(tmp_path), partial)[0]
    for parameters in (SHARD_2, DIVIDED):
        for one in ranks.run(resume_in_another_layout, dict(parameters), str(tmp_path), partial):
            for key, value in plain[0].items():
                torch.testing.assert_close(one[0][key], value, atol=1e-12, rtol=0)
            for number, entry in plain[1]["state"].items():
                for key, value in entry.items():
                    torch.testing.assert_close(one[1]["state"][number][key], value, atol=1e-12, rtol=0)


class Central(torch.optim.SGD):
    """A subclass of a known optimizer may do anything to a parameter's gradient."""


def look_at_gradients() -> dict[str, Any]:
    smp, model, optimizer, train_step = script()
    norms = {}
    train_step()
    whole = model.state_dict()
    norms["2"] = smp.clip_grad_norm_(model.parameters(), 1e9).item()
    norms["torch"] = nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    norms["inf"] = smp.clip_grad_norm_(model.parameters(), math.inf, norm_type=math.inf).item()
    train_step()
    # A rank without an element of a parameter has an empty gradient.
    assert all(parameter.grad is not None for parameter in model.local_parameters())
    norms["two steps"] = smp.clip_grad_norm_(model.parameters(), 1e9).item()
    optimizer.zero_grad(set_to_none=False)
    norms["zero"] = smp.clip_grad_norm_(model.parameters(), 1e9).item()
    with pytest.raises(Exception, match=r"load_state_dict\(assign=True\) of sharded parameters"):
        model.load_state_dict(whole, assign=True)
    with pytest.raises(Exception, match=r"model.join\(\) with sharded_data_parallel_degree"), model.join():
        pass
    with model.join(enable=False):
        train_step()
    for other in (torch.optim.Adafactor(model.parameters()), Central(model.parameters())):
        with pytest.raises(Exception, match=rf"{type(other).__name__} may use .* with sharded_data_parallel_degree"):
            smp.DistributedOptimizer(other)
    smp.DistributedOptimizer(Central(model.parameters()), elementwise=True)
    with pytest.raises(Exception, match=r"register_comm_hook\(\) with sharded_data_parallel_degree"):
        model.register_comm_hook(None, lambda state, bucket: None)
    doubled = {key: 2 * value for key, value in whole.items()}
    model.load_state_dict(doubled)
    assert same(dict(doubled), dict(model.state_dict()))
    part = {name: shard.values for name, shard in model.shards.named_shards().items()}
    for name, shard in model.shards.named_shards().items():
        expected = doubled[name].reshape(-1)[shard.start : shard.start + shard.values.numel()]
        assert torch.equal(part[name], expected)
    return norms


def test_norms_and_writes_are_those_of_the_whole_model(ranks: Ranks) -> None:
    module, inputs, target = models.build("Tied", torch.float64)
    nn.functional.cross_entropy(module(inputs), target).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    norm = nn.utils.get_total_norm(gradients).item()
    largest = nn.utils.get_total_norm(gradients, math.inf).item()
    for norms in ranks.run(look_at_gradients, dict(SHARD_2)) + ranks.run(look_at_gradients, dict(PIPELINE)):
        expected = {"2": norm, "torch": norm, "inf": largest, "two steps": 2 * norm, "zero": 0.0}
        assert norms == pytest.approx(expected, rel=1e-9)


def write_in_a_step(assign: bool) -> bool:
    """Say whether writes of a step stay that torch counts in no version."""
    smp, model, _, train_step = script()
    train_step()
    before = model.state_dict()

    @smp.step
    def write(_: torch.Tensor) -> None:
        for parameter in model.parameters():
            if assign:
                parameter.data = 2 * parameter.data
            else:
                parameter.data.mul_(2)

    write(torch.ones(2, 1))
    return same({key: 2 * value for key, value in before.items()}, dict(model.state_dict()))


@pytest.mark.parametrize("assign", [True, False])
def test_writes_through_data_in_a_step_stay(ranks: Ranks, assign: bool) -> None:
    assert all(ranks.run(write_in_a_step, dict(SHARD_2), assign))


def delay_and_accumulate() -> dict[str, Any]:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(5)
    with smp.delay_param_initialization():
        module = models.ALL["Chain"].module()
    _, inputs, target = models.build("Chain")
    inputs, target = (tensor.chunk(2)[smp.rdp_rank()] for tensor in (inputs, target))
    model = smp.DistributedModel(module, backward_passes_per_step=2)
    # Adagrad makes its states at once: those of the whole parameters are divided with them.
    optimizer = smp.DistributedOptimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    @smp.step
    def evaluate(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(inputs)

    for half in (0, 1):
        train_step(inputs.chunk(2)[half], target.chunk(2)[half])
        evaluate(inputs)
    optimizer.step()
    if model.shards is not None and smp.pp_size() == 1:
        with pytest.raises(Exception, match="the wrapped module is called outside of a step"):
            model.module(inputs)
    weights = dict(model.state_dict())
    model.cpu()
    assert same(dict(model.module.state_dict()), weights)
    model.module(inputs)
    return weights


def test_gradients_add_up_over_steps_of_a_model_whose_values_are_made_late(ranks: Ranks) -> None:
    late = {"delayed_parameter_initialization": True}
    replicas = ranks.run(delay_and_accumulate, {"partitions": 1, "replicas": 2, "ddp": True, **late})
    for parameters in (SHARD_2, PIPELINE):
        for weights in ranks.run(delay_and_accumulate, {**parameters, **late, "sdp_gradient_clipping": 0}):
            torch.testing.assert_close(weights, replicas[0], atol=1e-5, rtol=0)


def scale_losses() -> tuple[float, list[Any]]:
    smp, model, optimizer, train_step = script()
    scaler = smp.amp.GradScaler(init_scale=4.0, growth_interval=100)
    before = None
    for number in range(3):
        optimizer.zero_grad()
        # An infinite gradient on one rank: all ranks skip the step.
        overflow = number == 1 and smp.rank() == 0
        train_step(math.inf if overflow else scaler.get_scale())
        scaler.scale(torch.ones(()))
        before = model.state_dict()
        scaler.step(optimizer)
        scaler.update()
        assert same(dict(before), dict(model.state_dict())) == (number == 1)
    return scaler.get_scale(), [model.state_dict()[key] for key in before or ()]


def test_ranks_skip_a_step_with_infinite_gradients_together(ranks: Ranks) -> None:
    (scale, one), (_, other) = ranks.run(scale_losses, dict(SHARD_2))
    assert scale == 2.0
    assert same(one, other)


def call_on_one_rank(call: str) -> None:
    smp, model, optimizer, train_step = script()
    train(train_step, optimizer, 1)
    if smp.rank() == 0:
        model.state_dict() if call == "model" else optimizer.state_dict()
    train_step()


@pytest.mark.parametrize("call", ["model", "optimizer"])
def test_a_state_dict_on_one_rank_alone_is_refused(ranks: Ranks, call: str) -> None:
    message = rf"this rank calls {call}.state_dict\(\) while rank 1, .* calls the step function"
    with pytest.raises(RankFailedError, match=message):
        ranks.run(call_on_one_rank, dict(SHARD_2), call)


def freeze_between_steps() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> None:
        model.backward(nn.functional.cross_entropy(model(inputs), target))

    train_step(inputs, target)
    # A bias, which stays whole: the reducer of whole parameters watches others from here on.
    module[0].bias.requires_grad_(False)
    train_step(inputs, target)
    with pytest.raises(Exception, match="the wrapped module is called outside of a step"):
        model.module(inputs)


def test_a_parameter_that_is_frozen_later_leaves_the_shards_hooks_alone(ranks: Ranks) -> None:
    ranks.run(freeze_between_steps, {**SHARD_2, "sdp_param_persistence_threshold": 20})


def wrap_optimizers() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, _, _ = models.build("Chain")
    model = smp.DistributedModel(module)

    class Prodigy(torch.optim.AdamW):
        pass

    refused = {"Prodigy": "Prodigy takes a number from all parameters at once, and with `partitions`"}
    if smp.tp_size() > 1:
        refused = dict.fromkeys(("Prodigy", "Central"), "may use the norm.* with tensor_parallel_degree its")
    for kind in (torch.optim.AdamW, Central, Prodigy):
        if kind.__name__ in refused:
            with pytest.raises(Exception, match=refused[kind.__name__]):
                smp.DistributedOptimizer(kind(model.parameters(), lr=0.1))
            smp.DistributedOptimizer(kind(model.parameters(), lr=0.1), elementwise=True)
        elif kind is Central:
            with pytest.warns(UserWarning, match=r"Central.step\(\) sees the parameters of its rank alone"):
                smp.DistributedOptimizer(kind(model.parameters(), lr=0.1))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                smp.DistributedOptimizer(kind(model.parameters(), lr=0.1))


def test_optimizers_that_may_need_more_than_this_rank_has_are_refused(ranks: Ranks) -> None:
    ranks.run(wrap_optimizers, {"partitions": 2})
    ranks.run(wrap_optimizers, {"partitions": 1, "tensor_parallel_degree": 2, "ddp": True})
