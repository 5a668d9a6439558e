"""The automatic partition: one decision for all ranks, its file, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.model_parallel.partition_file import parse
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.model_parallel.models import layers
from tests.parallel.torch.ranks import RankFailedError, Ranks

TWO = {"partitions": 2, "microbatches": 2}
CASES = {**models.ALL, "Dropped": layers.DROPPED}


def train(name: str, arguments: dict[str, Any]) -> tuple[list[float], dict[str, int], list[bool]]:
    """Train for three steps; return the losses, the partition, and a flag per call: True if it was traced."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = CASES[name].build()
    model = smp.DistributedModel(module, **arguments)
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.05))
    # Not a list, which the library restores after the trace.
    traced: SimpleQueue[bool] = SimpleQueue()

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        traced.put(smp.is_tracing())
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss)
        return loss

    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(train_step(inputs, target).reduce_mean().item())
        optimizer.step()
    assert not smp.is_tracing()
    return losses, model.assigned, [traced.get() for _ in range(traced.qsize())]


def test_only_the_first_rank_traces_and_only_once(ranks: Ranks) -> None:
    first, second = ranks.run(train, dict(TWO), "Chain", {})
    assert first[2] == [True] + [False] * 6
    assert second[2] == [False] * 6
    assert first[:2] == second[:2]


@pytest.mark.parametrize("name", ["Dropped", "Normed", "Chain"])
def test_a_loaded_partition_gives_the_same_numbers_to_the_last_bit(ranks: Ranks, name: str, tmp_path: Path) -> None:
    """The trace draws random numbers and updates statistics, and must leave no sign of it."""
    file = tmp_path / "made" / "on the way" / "partition.json"
    decided = ranks.run(train, {**TWO, "partition_file": str(file)}, name, {})
    loaded = ranks.run(train, {**TWO, "partition_file": str(file), "load_partition": True}, name, {})
    assert [rank_result[:2] for rank_result in loaded] == [rank_result[:2] for rank_result in decided]
    assert not any(traced for *_, calls in loaded for traced in calls)
    assert [path.name for path in file.parent.iterdir()] == ["partition.json"]


def test_the_file_holds_the_decision_and_the_memory_of_each_rank(ranks: Ranks, tmp_path: Path) -> None:
    (_, assigned, _), _ = ranks.run(train, {**TWO, "partition_file": str(tmp_path / "p.json")}, "Chain", {})
    file = parse((tmp_path / "p.json").read_bytes())
    assert file.assigned == assigned
    assert file.gap < 1
    module, *_ = models.build("Chain")
    total = sum(parameter.numel() for parameter in module.parameters())
    # Weight, gradient and Adam's two moments.
    assert sum(place.parameter_bytes for place in file.modules) == total * 4 * 4
    assert sum(load.memory_bytes for load in file.loads) > total * 4 * 4


def test_seconds_may_be_clocked(ranks: Ranks, tmp_path: Path) -> None:
    settings = {**TWO, "optimize": "speed", "partition_file": str(tmp_path / "p.json")}
    first, second = ranks.run(train, settings, "Chain", {"trace_execution_times": True})
    assert first[:2] == second[:2]
    assert first[2] == [True, True] + [False] * 6, "a first run warms up"


class Uneven(nn.Sequential):
    """Most of the parameters are in the first layer, and most of the work is in the others."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(6_000, 64), *[nn.Linear(64, 64) for _ in range(5)])


def split_uneven() -> dict[str, int]:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(Uneven())
    smp.step(lambda inputs: model.backward(model(inputs).sum()))(torch.arange(1_024).view(2, 512))
    return model.assigned


@pytest.mark.parametrize(
    ("settings", "on_first"),
    [
        ({"optimize": "memory", "memory_weight": 1.0}, ["0"]),
        ({"optimize": "speed", "memory_weight": 0.0}, ["0", "1", "2"]),
        ({"skip_tracing": True}, ["0"]),
    ],
    ids=["memory", "speed", "without a trace"],
)
def test_the_settings_choose_what_is_balanced(ranks: Ranks, settings: dict[str, Any], on_first: list[str]) -> None:
    for assigned in ranks.run(split_uneven, {**TWO, **settings}):
        assert [path for path, partition in assigned.items() if partition == 0] == on_first


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("boom")


def fail() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), Broken(6, 6)))
    smp.step(lambda inputs: model(inputs))(torch.randn(8, 6))


def test_a_failure_in_the_trace_reaches_every_rank_with_the_module_s_name(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(fail, dict(TWO))
    first, second = str(caught.value).split("rank 1:\n")
    assert first.endswith("ZeroDivisionError: boom\n\n")
    assert (
        "PeerFailedError: rank 0 failed while it decided the partition: ZeroDivisionError: boom (in module 1)" in second
    )


def test_an_error_names_too_few_modules(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match="has 4 separable modules with parameters, too few for 5 partitions"):
        ranks.run(train, {"partitions": 5, "microbatches": 1}, "Chain", {})


def test_a_partition_file_for_another_model_is_named_before_anything_runs(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    ranks.run(train, {**TWO, "partition_file": str(file)}, "Chain", {})
    load = {"partition_file": str(file), "load_partition": True, "microbatches": 1}
    with pytest.raises(RankFailedError, match=r"p\.json: the partition file is for another model\. The model lacks"):
        ranks.run(train, {**load, "partitions": 2}, "Tied", {})
    with pytest.raises(RankFailedError, match=r"p\.json: the partition file has 2 partitions, this job 3"):
        ranks.run(train, {**load, "partitions": 3}, "Chain", {})


def change(file: Path, path: str, partition: int | None) -> None:
    content = json.loads(file.read_text())
    for module in content["modules"]:
        if module["path"] == path:
            module["partition"] = partition
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "partition", "message"),
    [
        ("middle.0", None, "module 'middle.0' has parameters or buffers of its own"),
        ("middle.1", 0, "module 'middle.1' has no parameters or buffers of its own"),
        ("head", 7, "contradicts itself"),
    ],
)
def test_a_file_that_does_not_fit_the_parameters_is_refused(
    ranks: Ranks, tmp_path: Path, path: str, partition: int | None, message: str
) -> None:
    file = tmp_path / "p.json"
    settings = {**TWO, "partition_file": str(file)}
    ranks.run(train, dict(settings), "Tied", {})
    change(file, path, partition)
    with pytest.raises(RankFailedError, match=message):
        ranks.run(train, {**settings, "load_partition": True}, "Tied", {})


def test_a_file_that_separates_a_shared_parameter_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    settings = {**TWO, "partition_file": str(file)}
    (_, assigned, _), _ = ranks.run(train, dict(settings), "Tied", {})
    change(file, "head", 1 - assigned["embed"])
    with pytest.raises(RankFailedError, match="modules 'embed' and 'head' share a parameter"):
        ranks.run(train, {**settings, "load_partition": True}, "Tied", {})


def test_an_error_names_a_missing_or_truncated_file(ranks: Ranks, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    settings = {**TWO, "partition_file": str(file), "load_partition": True}
    with pytest.raises(RankFailedError, match=r"p\.json' cannot be read: No such file or directory\. Run once without"):
        ranks.run(train, dict(settings), "Chain", {})
    file.write_text('{"version": 1, "parti')
    with pytest.raises(RankFailedError, match=r"p\.json: this is not a partition file"):
        ranks.run(train, dict(settings), "Chain", {})


def test_a_file_that_cannot_be_written_ends_the_job_at_once(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RankFailedError, match=r"cannot be written: .* Name a path that the first rank can write to"):
        ranks.run(train, {**TWO, "partition_file": str(tmp_path / "taken" / "p.json")}, "Chain", {})


def test_an_unknown_trace_device_is_refused(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=r"trace_device='tpu'\): take 'gpu' or 'cpu'"):
        ranks.run(train, dict(TWO), "Chain", {"trace_device": "tpu"})
