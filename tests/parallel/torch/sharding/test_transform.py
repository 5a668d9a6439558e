"""`init`, `transform` and `shard` on real ranks; `test_equality` has the matrix of models and layouts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint import api as checkpoint
from tests.parallel.torch.ranks import RankFailedError, Ranks
from tests.parallel.torch.sharding.releases import needs_shard

STEPS = 3
PLAN = {"layers.*.0": "colwise", "layers.*.2": "rowwise"}
FP8 = "transform.config=.... sets fp8: Herringbone keeps the model's own layers, without FP8"


class Small(nn.Module):
    """Two blocks, a tied head, a buffer, and a parameter with fewer rows than ranks."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.direction = nn.Linear(width, 2)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) * self.scale
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        # Inside of the head: added to all scores of a token, it would have a gradient of rounding errors alone, which
        # AdamW divides by their own size.
        return self.head(hidden + self.direction(hidden).sum(-1, keepdim=True))


def made(seed: int) -> Small:
    torch.manual_seed(seed)
    return Small().double()


def trained(model: nn.Module, batch: slice = slice(None)) -> list[torch.Tensor]:
    """Train a few steps on these rows of each batch, and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        tokens = torch.randint(0, 16, (8, 6), generator=generator)[batch]
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def difference(model: nn.Module, losses: list[torch.Tensor]) -> float:
    """Return the largest difference from one process, in losses and weights."""
    reference = made(0)
    expected = torch.stack(trained(reference))
    average = torch.stack(losses)
    torch.distributed.all_reduce(average)
    average /= torch.distributed.get_world_size()
    weights = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}
    return max(
        (average - expected).abs().max().item(),
        *((weights[name] - value).abs().max().item() for name, value in reference.named_parameters()),
    )


def rows() -> slice:
    from herringbone_parallel.torch.sharding.numbers import state

    size = 8 // state.dp_size
    return slice(state.dp_rank * size, (state.dp_rank + 1) * size)


def equality(options: dict[str, Any]) -> float:
    from herringbone_parallel.torch.sharding import api as tsm

    # The other ranks begin with other values: `shard` gives them rank 0's.
    model = tsm.shard(made(tsm.state.rank), plan=PLAN if tsm.state.tp_size > 1 else None, **options)
    return difference(model, trained(model, rows()))


@pytest.mark.parametrize(
    ("count", "parameters", "options"),
    [
        (2, {"hybrid_shard_degree": 2}, {}),
        (4, {"hybrid_shard_degree": 2, "allow_empty_shards": True}, {"checkpoint_activations": True}),
        (4, {"hybrid_shard_degree": 4, "sm_activation_offloading": True}, {}),
        (4, {"tensor_parallel_degree": 2}, {"reshard_after_forward": False}),
        (2, {"hybrid_shard_degree": 1}, {"blocks": [nn.Linear]}),
    ],
)
@needs_shard
def test_training_equals_one_process(
    ranks: Ranks, count: int, parameters: dict[str, Any], options: dict[str, Any]
) -> None:
    assert max(ranks.shard(equality, count, parameters, options)) < 1e-10


def wrapped_by_the_script(strategy: str, given: bool) -> tuple[float, int, str]:
    """What AWS's scripts do: `transform`, then torch's own class, with or without a mesh of theirs."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    from herringbone_parallel.torch.sharding import api as tsm

    plan = PLAN if tsm.state.tp_size > 1 else None
    model = tsm.transform(made(tsm.state.rank), load_state_dict_from_rank0=True, plan=plan)
    group = {"process_group": torch.distributed.group.WORLD} if given else {}
    wrapped = FullyShardedDataParallel(
        model, sharding_strategy=ShardingStrategy[strategy], use_orig_params=True, post_param_init_fn=None, **group
    )
    losses = trained(wrapped, rows())
    shards, strategy = wrapped.process_group.size(), wrapped.sharding_strategy.name
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return difference(model, losses), shards, strategy


@pytest.mark.parametrize(
    ("count", "degree", "strategy", "shards", "used"),
    [
        (4, 2, "FULL_SHARD", 2, "HYBRID_SHARD"),
        (4, 2, "_HYBRID_SHARD_ZERO2", 2, "_HYBRID_SHARD_ZERO2"),
        (2, 2, "HYBRID_SHARD", 2, "FULL_SHARD"),
        # One shard: torch would average over nobody with the strategy that the script names.
        (2, 1, "FULL_SHARD", 2, "NO_SHARD"),
    ],
)
def test_torch_s_own_class_uses_the_job_s_mesh(
    ranks: Ranks, count: int, degree: int, strategy: str, shards: int, used: str
) -> None:
    for error, size, name in ranks.shard(
        wrapped_by_the_script, count, {"hybrid_shard_degree": degree}, strategy, False
    ):
        assert (error < 1e-10, size, name) == (True, shards, used)


def test_a_script_s_own_group_wins(ranks: Ranks) -> None:
    for error, size, name in ranks.shard(wrapped_by_the_script, 4, {"hybrid_shard_degree": 2}, "FULL_SHARD", True):
        assert (error < 1e-10, size, name) == (True, 4, "FULL_SHARD")


def wrapped_with_tensor_parallelism() -> tuple[float, float, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from herringbone_parallel.torch.sharding import api as tsm
    from herringbone_parallel.torch.sharding import checkpointing
    from herringbone_parallel.torch.sharding.layers import TransformerLayer

    model = tsm.transform(made(tsm.state.rank), load_state_dict_from_rank0=True, plan=PLAN)
    policy = ModuleWrapPolicy({TransformerLayer})
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, auto_wrap_policy=policy)
    losses, reference = torch.stack(trained(wrapped, rows())), made(0)
    torch.distributed.all_reduce(losses)
    error = (losses / torch.distributed.get_world_size() - torch.stack(trained(reference))).abs().max().item()
    # Gradients of the last step, which the whole batch has made.
    norm = wrapped.clip_grad_norm_(1e-3)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 1e-3)
    again = tsm.clip_grad_norm_(wrapped, 1.0)
    try:
        checkpointing.save({"model": wrapped.state_dict()}, checkpoint_id="never-written")
    except ParallelError as refusal:
        return max(error, (norm - expected).abs().item(), abs(again.item() - 1e-3)), norm.item(), str(refusal)
    return error, norm.item(), "accepted"


@pytest.mark.parametrize("shards", [1, 2])
def test_torch_s_own_class_shards_tensor_parallel_layers(ranks: Ranks, shards: int) -> None:
    parameters = {"tensor_parallel_degree": 2, "hybrid_shard_degree": shards}
    for error, norm, refusal in ranks.shard(wrapped_with_tensor_parallelism, 4, parameters):
        assert error < 1e-6
        assert norm > 0
        assert "save to a folder per state.tp_rank with process_group=model.process_group" in refusal


def saved_by_groups(folder: str) -> list[float]:
    from herringbone_parallel.torch.sharding import checkpointing

    groups = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    number = torch.distributed.get_rank() // 2
    loaded = []
    for step in range(4):
        weight = torch.full((4,), 10.0 * step + number)
        part = {"checkpoint_id": f"{folder}/{step}/tp-{number}", "process_group": groups[number]}
        checkpointing.save({"weight": weight}, **part)
        checkpointing.load({"weight": weight.zero_()}, **part)
        loaded.append(weight.mean().item())
    return loaded


def test_two_groups_of_ranks_save_at_the_same_time(ranks: Ranks, tmp_path: Path) -> None:
    loaded = ranks.shard(saved_by_groups, 4, {"random_seed": 1}, str(tmp_path))
    assert loaded == [[0, 10, 20, 30]] * 2 + [[1, 11, 21, 31]] * 2


def saved_without_a_mesh(folder: str) -> float:
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    from herringbone_parallel.torch.sharding import checkpointing

    options = {"device_id": torch.device("cpu"), "use_orig_params": True}
    models = [FullyShardedDataParallel(made(seed), **options) for seed in (0, 1)]
    for model, copy in zip(models, (checkpointing.save, checkpointing.load), strict=True):
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict()}
            copy(state, checkpoint_id=f"{folder}/a")
            model.load_state_dict(state["model"])
    with FullyShardedDataParallel.summon_full_params(models[1]):
        loaded = dict(models[1].module.named_parameters())
        return max((loaded[name] - value).abs().max().item() for name, value in made(0).named_parameters())


def test_sharded_states_of_torch_s_own_class_without_a_mesh(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.shard(saved_without_a_mesh, 2, {"random_seed": 1}, str(tmp_path)) == [0.0, 0.0]
    assert checkpoint.read_plain(tmp_path / "a")["model"]["head.weight"].equal(made(0).head.weight)


def plain_fully_shard() -> list[int]:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(made(0))
    return list(next(model.parameters()).device_mesh.shape)


def test_fully_shard_uses_the_job_s_mesh_and_all_ranks_without_degrees(ranks: Ranks) -> None:
    assert ranks.shard(plain_fully_shard, 4, {"hybrid_shard_degree": 2}) == [[2, 2]] * 4
    assert ranks.shard(plain_fully_shard, 4, {"random_seed": 1}) == [[4]] * 4


def numbers() -> dict[str, Any]:
    from herringbone_parallel.torch.sharding import api as tsm

    state = tsm.state
    groups = {
        name: group and torch.distributed.get_process_group_ranks(group)
        for name in ("tp_process_group", "cp_process_group", "rep_rank_process_group", "world_process_group")
        for group in [getattr(state, name)]
    }
    names = ("rank", "world_size", "hybrid_shard_degree", "tensor_parallel_degree", "expert_parallel_degree",
             "tp_size", "tp_rank", "cp_size", "cp_rank", "rep_size", "rep_rank", "dp_size", "dp_rank")  # fmt: skip
    return {name: getattr(state, name) for name in names} | groups | {"rep 3": state.ranker.get_rep_rank(3)}


def test_a_rank_s_numbers(ranks: Ranks) -> None:
    assert ranks.shard(numbers, 4, {"tensor_parallel_degree": 2, "hybrid_shard_degree": 1})[2] == {
        "rank": 2, "world_size": 4, "hybrid_shard_degree": 1, "tensor_parallel_degree": 2, "expert_parallel_degree": 1,
        "tp_size": 2, "tp_rank": 0, "cp_size": 1, "cp_rank": 0, "rep_size": 2, "rep_rank": 1, "dp_size": 2,
        "dp_rank": 1, "tp_process_group": [2, 3], "cp_process_group": None, "rep_rank_process_group": [2],
        "world_process_group": [0, 1, 2, 3], "rep 3": 1,
    }  # fmt: skip
    assert ranks.shard(numbers, 4, {"context_parallel_degree": 2, "hybrid_shard_degree": 2})[3] == {
        "rank": 3, "world_size": 4, "hybrid_shard_degree": 2, "tensor_parallel_degree": 1, "expert_parallel_degree": 1,
        "tp_size": 1, "tp_rank": 0, "cp_size": 2, "cp_rank": 1, "rep_size": 2, "rep_rank": 1, "dp_size": 2,
        "dp_rank": 1, "tp_process_group": None, "cp_process_group": [2, 3], "rep_rank_process_group": [2, 3],
        "world_process_group": [0, 1, 2, 3], "rep 3": 1,
    }  # fmt: skip


def values_of_rank0(how: str) -> tuple[float, bool]:
    """Make the model on rank 0 alone; return the largest difference from it, and whether its weights are still tied."""
    from herringbone_parallel.torch.sharding import api as tsm

    with torch.device("cpu" if tsm.state.rank == 0 else "meta"):
        model = made(0)
    plan = PLAN if tsm.state.tp_size > 1 else None
    if how == "neither":
        with pytest.raises(ParallelError, match=r"on the meta device on some of the ranks .0, 1., which share"):
            tsm.transform(model, plan=plan)
        return 0.0, True
    if how == "shard":
        model = tsm.shard(model, plan=plan)
    else:
        model = tsm.transform(model, load_state_dict_from_rank0=True, plan=plan)
    weights = {name: value.full_tensor() for name, value in model.named_parameters()}
    error = max((weights[name] - value).abs().max().item() for name, value in made(0).named_parameters())
    return error + abs(model.scale.item() - 0.5), model.head.weight is model.embedding.weight


@pytest.mark.parametrize(
    ("how", "parameters"),
    [
        ("shard", {"hybrid_shard_degree": 2}),
        ("shard", {"tensor_parallel_degree": 2}),
        ("transform", {"tensor_parallel_degree": 2}),
        ("neither", {"tensor_parallel_degree": 2}),
    ],
)
@needs_shard
def test_a_model_that_only_rank_0_has_made(ranks: Ranks, how: str, parameters: dict[str, Any]) -> None:
    assert ranks.shard(values_of_rank0, 2, parameters, how) == [(0.0, True)] * 2


def made_late() -> tuple[bool, list[float]]:
    """Initialise a model on the meta device; every rank's random numbers differ."""
    from herringbone_parallel.torch.sharding import api as tsm

    torch.manual_seed(100 + tsm.state.rank)
    with torch.device("meta"):
        model = Small()
    model.scale = torch.tensor(0.5)
    initer = tsm.DelayedParamIniter(model)
    with initer.validate_params_and_buffers_inited():
        model = tsm.shard(model, plan=PLAN if tsm.state.tp_size > 1 else None)
    sums = [parameter.full_tensor().double().square().sum().item() for parameter in model.parameters()]
    return model.head.weight is model.embedding.weight, sums


@needs_shard
def test_parameters_made_late_do_not_depend_on_the_layout(ranks: Ranks) -> None:
    results = [
        *ranks.shard(made_late, 2, {"hybrid_shard_degree": 2}),
        *ranks.shard(made_late, 4, {"hybrid_shard_degree": 2}),
        *ranks.shard(made_late, 2, {"tensor_parallel_degree": 2}),
    ]
    assert all(tied for tied, _ in results)
    for _, sums in results:
        assert sums == pytest.approx(results[0][1], rel=1e-5)
    other = ranks.shard(made_late, 2, {"hybrid_shard_degree": 2, "random_seed": 7})
    assert other[0][1] != pytest.approx(results[0][1], rel=1e-3)


def saved_and_loaded(folder: str, save: bool) -> list[float]:
    from herringbone_parallel.torch.sharding import api as tsm
    from herringbone_parallel.torch.sharding import checkpointing

    model = tsm.shard(made(0 if save else 5), plan=PLAN if tsm.state.tp_size > 1 else None)
    state = {"model": model.state_dict(), "epoch": 3 if save else 0}
    path = os.path.join(folder, "step-1")
    if save:
        checkpointing.async_save(state, checkpoint_id=path)
        assert checkpointing.maybe_finalize_async_calls(blocking=True) == [1]
        assert checkpointing.maybe_finalize_async_calls() == []
    else:
        checkpointing.load(state, checkpoint_id=path)
        assert state["epoch"] == 3
    return [parameter.full_tensor().square().sum().item() for parameter in model.parameters()]


@needs_shard
def test_a_checkpoint_loads_on_another_mesh(ranks: Ranks, tmp_path: Path) -> None:
    written = ranks.shard(saved_and_loaded, 4, {"hybrid_shard_degree": 2}, str(tmp_path), True)[0]
    for sums in ranks.shard(saved_and_loaded, 2, {"tensor_parallel_degree": 2}, str(tmp_path), False):
        assert sums == pytest.approx(written, rel=1e-12)


def refused(arguments: dict[str, Any]) -> None:
    from herringbone_parallel.torch.sharding import api as tsm

    tsm.shard(tsm.transform(made(0), **arguments), plan={"weight": "colwise"}, copy_initial_values=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"fp8": True}}, FP8),
        ({"cp_comm_type": "ring"}, "cp_comm_type is p2p or all_gather, not 'ring'"),
        pytest.param({}, "`transform` has split this model's layers already", marks=needs_shard),
    ],
)
def test_transform_refuses_by_name(ranks: Ranks, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.shard(refused, 1, {"hybrid_shard_degree": 1}, arguments)


def offloaded(checkpoint: bool) -> float:
    """What AWS's scripts do for activation offloading."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
        offload_wrapper,
    )

    from herringbone_parallel.torch.sharding import api as tsm
    from herringbone_parallel.torch.sharding.layers import TransformerLayer

    model = tsm.transform(made(0))
    if checkpoint:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, TransformerLayer))
    wrapped = offload_wrapper(tsm.shard(model))
    losses = trained(wrapped)
    return difference(model, losses)


@needs_shard
def test_offloading_needs_checkpointed_layers(ranks: Ranks) -> None:
    parameters = {"hybrid_shard_degree": 1, "sm_activation_offloading": True}
    assert ranks.shard(offloaded, 1, parameters, True)[0] < 1e-10
    assert ranks.shard(offloaded, 1, {"hybrid_shard_degree": 1}, False)[0] < 1e-10
