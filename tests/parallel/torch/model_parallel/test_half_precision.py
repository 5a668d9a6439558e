"""fp16, bf16 and loss scaling over ranks give the numbers of one process that does the same arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

STEPS, SCALE, NORM = 4, 1024.0, 0.5
TWO = {"partitions": 2, "microbatches": 2}
# Every replica gets the same batch here, so that the result is that of one replica.
FOUR = {**TWO, "replicas": 2, "ddp": True}
ONE = {"partitions": 1, "microbatches": 2}
# All ranks share the parameters and their float32 copies, or the updates alone. Clipping is what the tests call.
SHARED = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 0, "sdp_gradient_clipping": 0}
SHARDED = {**ONE, "replicas": 2, "ddp": True, **SHARED}
PIPELINED = {**TWO, "replicas": 2, "ddp": True, **SHARED}
DIVIDED = {**ONE, "replicas": 2, "ddp": True, "shard_optimizer_state": True}
LAYOUTS = {"one": ONE, "two": TWO, "four": FOUR, "sharded": SHARDED, "sharded pipeline": PIPELINED, "divided": DIVIDED}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Trained(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]
    masters: dict[str, torch.Tensor]


def train_alone(name: str, precision: str, steps: int = STEPS) -> Trained:
    """Train with 16-bit weights, and masters and a scale by hand, as a script of one process would."""
    dtype = DTYPES[precision]
    scale = SCALE if precision == "fp16" else 1.0
    module, inputs, target = models.build(name, dtype)
    parameters = dict(module.named_parameters())
    masters = {key: nn.Parameter(parameter.detach().float()) for key, parameter in parameters.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=0.02)
    losses, norms = [], []
    for _ in range(steps):
        module.zero_grad()
        parts = []
        for part, part_target in zip(inputs.chunk(2), target.chunk(2), strict=True):
            loss = nn.functional.cross_entropy(module(part).float(), part_target)
            loss.backward(torch.tensor(scale / 2))
            parts.append(loss.detach())
        for key, parameter in parameters.items():
            masters[key].grad = parameter.grad.float() / scale
        norms.append(torch.nn.utils.clip_grad_norm_(masters.values(), NORM).item())
        optimizer.step()
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(masters[key])
        losses.append(torch.stack(parts).mean().item())
    return Trained(losses, norms, module.state_dict(), {key: master.detach() for key, master in masters.items()})


def trainer(name: str, **arguments: Any) -> Any:
    """Return model, optimizer and a function that makes one step and returns the loss."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.02), **arguments)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss)
        return loss

    def run() -> float:
        optimizer.zero_grad()
        return train_step(inputs, target).reduce_mean().item()

    return model, optimizer, run


def train_on_ranks(name: str, static: float, clip: str) -> Trained:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, run = trainer(name, static_loss_scale=static)
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(run())
        if clip == "optimizer":
            norms.append(optimizer.clip_master_grads(NORM))
        else:
            function = smp.clip_grad_norm_ if clip == "smp" else torch.nn.utils.clip_grad_norm_
            norms.append(function(model.parameters(), NORM).item())
        optimizer.step()
        assert not optimizer.overflow
    names = list(dict(model.named_parameters()))
    entries = optimizer.state_dict()["state"]
    masters = {key.removeprefix("module."): entries[i]["master_weight"] for i, key in enumerate(names)}
    return Trained(losses, norms, model.state_dict(), masters)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "precision", "clip"),
    [("Chain", "fp16", "optimizer"), ("Transformer", "bf16", "torch"), ("Chain", "bf16", "smp")],
)
def test_ranks_train_as_one_process(ranks: Ranks, layout: str, name: str, precision: str, clip: str) -> None:
    alone = train_alone(name, precision)
    static = SCALE if precision == "fp16" else 1.0
    by_rank = ranks.run(train_on_ranks, {**LAYOUTS[layout], precision: True}, name, static, clip)
    for trained in by_rank:
        assert trained.losses == pytest.approx(alone.losses, abs=1e-5)
        assert trained.norms == pytest.approx(alone.norms, rel=1e-5)
        for key, tensor in alone.weights.items():
            assert trained.weights[key].dtype == DTYPES[precision]
            torch.testing.assert_close(trained.weights[key], tensor, atol=1e-6, rtol=0)
        for key, tensor in alone.masters.items():
            assert trained.masters[key].dtype == torch.float32
            torch.testing.assert_close(trained.masters[key], tensor, atol=1e-5, rtol=0)


def overflow_on_one_rank(arguments: dict[str, Any]) -> Any:
    """Make the first gradient of rank 1, or of the only rank, infinite in the second step."""
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, run = trainer("Chain", **arguments)
    scales, overflows, moved, norms = [], [], [], []
    for step in range(5):
        run()
        if step == 1 and smp.rank() == smp.size() - 1:
            # Of a parameter of which a rank has no element, its gradient has none either.
            next(p for p in model.local_parameters() if p.grad.numel()).grad[0] = torch.inf
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        norms.append(optimizer.clip_master_grads(1.0))
        optimizer.step()
        after = model.state_dict()
        moved.append(any(not torch.equal(before[key], after[key]) for key in before))
        overflows.append(optimizer.overflow)
        scales.append(optimizer.loss_scale)
    return scales, overflows, moved, [norm > 0 for norm in norms], norms[1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Ranks, layout: str, precision: str) -> None:
    settings = {**LAYOUTS[layout], **({"fp16": True} if precision == "fp16" else {})}
    fields = {"init_scale": 64.0, "scale_window": 2, "delayed_shift": 1}
    arguments = {"static_loss_scale": None, "dynamic_loss_scale": True, "dynamic_loss_args": fields}
    for answer in ranks.run(overflow_on_one_rank, settings, arguments):
        assert answer == (
            [64.0, 32.0, 32.0, 64.0, 64.0],
            [False, True, False, False, False],
            [True, False, True, True, True],
            [True, False, True, True, True],
            -1.0,
        )


def scaled_in_float32(dynamic: bool, clip: bool) -> Any:
    # SMP v1's documentation gives the fields as arguments of their own.
    arguments: dict[str, Any] = {"dynamic_loss_scale": True, "init_scale": 2.0**20} if dynamic else {}
    model, optimizer, run = trainer("Chain", **arguments)
    for _ in range(STEPS):
        run()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("layout", ["one", "two"])
@pytest.mark.parametrize("clip", [False, True])
def test_a_scale_changes_no_bit_in_float32(ranks: Ranks, layout: str, clip: bool) -> None:
    plain = ranks.run(scaled_in_float32, dict(LAYOUTS[layout]), False, clip)
    scaled = ranks.run(scaled_in_float32, dict(LAYOUTS[layout]), True, clip)
    for one, other in zip(plain, scaled, strict=True):
        for key, tensor in one.items():
            torch.testing.assert_close(other[key], tensor, atol=0, rtol=0)


def resumed(folder: str, partial: bool, split: int) -> Any:
    """Train STEPS steps, saving after `split`; or resume there, which any layout may do."""
    import herringbone_parallel.torch.model_parallel.api as smp

    fields = {"init_scale": 2.0**30, "scale_window": 2}
    model, optimizer, run = trainer("Chain", dynamic_loss_scale=True, dynamic_loss_args=fields)
    begun = 0
    if split == 0:
        begun = smp.resume_from_checkpoint(folder, tag="half", partial=partial)
    scales = []
    for step in range(begun, 16):
        run()
        optimizer.clip_master_grads(NORM)
        optimizer.step()
        scales.append(optimizer.loss_scale)
        if step + 1 == split:
            smp.save_checkpoint(
                folder, "half", partial=partial, model=model, optimizer=optimizer, user_content=step + 1
            )
    return model.state_dict(), scales


@pytest.mark.parametrize(
    ("partial", "saved", "resumed_on"),
    [
        (True, "two", "two"),
        (False, "two", "two"),
        (True, "two", "one"),
        (True, "two", "sharded"),
        (True, "sharded pipeline", "two"),
        (True, "divided", "one"),
        (False, "divided", "divided"),
    ],
)
def test_a_checkpoint_has_master_weights_and_scale(
    ranks: Ranks, tmp_path: Path, partial: bool, saved: str, resumed_on: str
) -> None:
    whole = ranks.run(resumed, {**LAYOUTS[saved], "fp16": True}, str(tmp_path), partial, 14)
    again = ranks.run(resumed, {**LAYOUTS[resumed_on], "fp16": True}, str(tmp_path), partial, 0)
    weights, scales = whole[0]
    # The first steps overflow, and the last ones train: the checkpoint is between good steps.
    assert scales[0] < 2.0**30
    assert scales[-1] > scales[10]
    for resumed_weights, resumed_scales in again:
        assert resumed_scales == scales[14:]
        for key, tensor in weights.items():
            assert torch.equal(resumed_weights[key], tensor)


def loaded_in_any_order(model_first: bool) -> Any:
    model, optimizer, run = trainer("Chain")
    run()
    optimizer.step()
    saved = model.state_dict(), optimizer.state_dict()
    run()
    optimizer.step()
    if model_first:
        model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    if not model_first:
        model.load_state_dict(saved[0])
    first = [entry["master_weight"] for entry in optimizer.state_dict()["state"].values()]
    # Foreign weights win over the copies of older ones.
    model.load_state_dict({key: torch.zeros_like(tensor) for key, tensor in saved[0].items()})
    left = [entry.get("master_weight") for entry in optimizer.state_dict()["state"].values()]
    masters = [entry["master_weight"] for entry in saved[1]["state"].values()]
    return all(map(torch.equal, first, masters)), left


@pytest.mark.parametrize("model_first", [True, False])
def test_states_load_in_any_order_and_foreign_weights_win(ranks: Ranks, model_first: bool) -> None:
    for equal, left in ranks.run(loaded_in_any_order, {**TWO, "bf16": True}, model_first):
        assert equal
        assert left == [None] * len(left)


def written_through_data() -> float:
    """Return the largest weight after a write that torch counts in no version, and an update without gradients."""
    model, optimizer, run = trainer("Chain")
    run()
    optimizer.step()
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)
    optimizer.zero_grad()
    optimizer.step()
    copies = (entry["master_weight"] for entry in optimizer.state_dict()["state"].values() if "master_weight" in entry)
    return max(tensor.abs().max().item() for tensor in (*model.local_parameters(), *copies))


@pytest.mark.parametrize("layout", ["one", "two", "divided"])
def test_a_write_through_data_is_no_update_that_is_lost(ranks: Ranks, layout: str) -> None:
    assert max(ranks.run(written_through_data, {**LAYOUTS[layout], "bf16": True})) < 0.0101


def made_in_half(zero_init: bool) -> Any:
    """Build the optimizer before the model is wrapped, as some scripts do, over a model made in 16 bits."""
    import herringbone_parallel.torch.model_parallel.api as smp

    with smp.model_creation(zero_init=zero_init, fused_softmax=True):
        module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        made = {parameter.dtype for parameter in module[0].parameters()}
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(inner)
    outputs = []

    @smp.step
    def train_step(inputs: torch.Tensor) -> torch.Tensor:
        output = model(inputs)
        outputs.append(output.dtype)
        model.backward(output.square().mean())
        return output

    train_step(torch.randn(8, 6))
    optimizer.step()
    kinds = {name: str(parameter.dtype) for name, parameter in model.local_named_parameters()}
    copies = {parameter.dtype for group in optimizer.param_groups for parameter in group["params"]}
    return made, kinds, copies, set(outputs)


@pytest.mark.parametrize("settings", [{"bf16": True}, {"fp16": True, "delayed_parameter_initialization": True}])
def test_the_model_is_in_16_bits_and_its_outputs_are_not(ranks: Ranks, settings: dict[str, Any]) -> None:
    torch_type = DTYPES["bf16" if "bf16" in settings else "fp16"]
    by_rank = ranks.run(made_in_half, {**TWO, **settings}, True)
    kinds = {name: kind for _, part, _, _ in by_rank for name, kind in part.items()}
    assert {kind for name, kind in kinds.items() if not name.startswith("1.")} == {str(torch_type)}
    for made, _, copies, outputs in by_rank:
        assert made == {torch_type}
        assert copies <= {torch.float32}
        assert outputs == {torch.float32}


def shared_by_a_tensor_group() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(3)
    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=torch.float32, fused_softmax=True):
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    _, inputs, target = models.build("Chain")
    model = smp.DistributedModel(module)
    scale: dict[str, Any] = {"dynamic_loss_scale": True, "init_scale": SCALE}
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.02), **scale)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss)
        return loss

    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(train_step(inputs, target).reduce_mean().item())
        norms.append(optimizer.clip_master_grads(NORM))
        optimizer.step()
    local = [tuple(parameter.shape) for parameter in model.local_parameters()]
    entries = optimizer.state_dict()["state"]
    return losses, norms, local, [tuple(entries[i]["master_weight"].shape) for i in range(4)]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_tensor_group_shares_master_weights(ranks: Ranks, precision: str) -> None:
    together = {"tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True}
    (alone,) = ranks.run(shared_by_a_tensor_group, {**ONE, precision: True})
    for losses, norms, local, whole in ranks.run(shared_by_a_tensor_group, {**ONE, **together, precision: True}):
        # Sums of products are added in another order, in 16 bits.
        assert losses == pytest.approx(alone[0], abs=2e-2)
        assert norms == pytest.approx(alone[1], rel=5e-2)
        assert local != whole
        assert whole == [(8, 6), (8,), (4, 8), (4,)]


def refused(call: str) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    fields: dict[str, Any] = {"static_loss_scale": 8.0}
    model, optimizer, run = trainer("Chain", **fields)
    if call == "second optimizer":
        smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True)
    elif call == "second optimizer without a scale":
        smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    elif call == "join":
        model.join().__enter__()
    elif call == "scaler":
        run()
        smp.amp.GradScaler().step(optimizer)
    else:
        run()
        optimizer.clip_master_grads(1.0)
        # Without `zero_grad`, so this step adds to the clipped gradients.
        smp.step(lambda inputs: model.backward(model(inputs).sum()))(torch.randn(8, 6))
        optimizer.step()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("second optimizer", "several smp.DistributedOptimizer without the same static_loss_scale"),
        # Its gradients would have been multiplied by the scale of the first one, and never divided.
        ("second optimizer without a scale", "several smp.DistributedOptimizer without the same static_loss_scale"),
        ("join", r"model\.join\(\) with a loss scale"),
        ("scaler", "GradScaler with an smp.DistributedOptimizer that scales the loss itself"),
        ("step after clipping", r"a step ran between the clipping of the gradients and optimizer\.step\(\)"),
    ],
)
def test_what_contradicts_a_scale_is_refused(ranks: Ranks, call: str, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(refused, dict(ONE), call)
