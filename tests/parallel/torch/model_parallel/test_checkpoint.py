"""Checkpoints: training resumes on the same or another number of partitions, and without the library."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

TWO = {"partitions": 2, "microbatches": 2}
# Replicas get the same batches here, so that each trains as a single pipeline does.
FOUR = {**TWO, "replicas": 2, "ddp": True}
BEFORE, AFTER = 2, 2


def build(name: str) -> Any:
    """Return a model, its optimizer with two groups of parameters, and a function that trains."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, target = models.build(name)
    optimizer = plain_optimizer(module)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), target)
        model.backward(loss)
        return loss

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            losses.append(train_step(inputs, target).reduce_mean().item())
            optimizer.step()
        return losses

    return model, optimizer, train


def plain_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    weights = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in module.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW([{"params": others, "weight_decay": 0.0}, {"params": weights}], lr=0.05)


def train_and_save(folder: str, partial: bool, others: tuple[str, ...] = ()) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Tied")
    train(BEFORE)
    optimizer.param_groups[0]["lr"] = 0.01
    content = {"step": BEFORE, "arguments": argparse.Namespace(rate=0.05)}
    for tag in (*others, "mid"):
        smp.save_checkpoint(folder, tag, partial, model, optimizer, user_content=content)
    return train(AFTER), model.state_dict()


def resume_and_train(folder: str, partial: bool, first: int, tag: str | None) -> Any:
    """Resume and train; with `first` steps before, so that there is a partition and a state to replace."""
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Tied")
    train(first)
    content = smp.resume_from_checkpoint(folder, tag, partial)
    assert content["step"] == BEFORE
    assert content["arguments"].rate == 0.05
    assert optimizer.param_groups[0]["lr"] == 0.01, "a scheduler that is made now must see it"
    saved = optimizer.state_dict()
    assert len(saved["state"]) == sum(len(group["params"]) for group in saved["param_groups"])
    return train(AFTER), model.state_dict()


def assert_same(by_rank: list[Any], expected: Any) -> None:
    losses, weights = expected
    for other_losses, other_weights in by_rank:
        assert other_losses == pytest.approx(losses, abs=1e-6)
        for name, tensor in weights.items():
            torch.testing.assert_close(other_weights[name], tensor, atol=1e-6, rtol=0)


def test_a_partial_checkpoint_resumes_on_any_number_of_partitions(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(train_and_save, dict(TWO), str(tmp_path), True)[0]
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "mid_partial",
        "mid_partial/manifest.json",
        "mid_partial/rank-00000.safetensors",
        "mid_partial/rank-00001.safetensors",
        "mid_partial/user_content.pt",
        "newest",
    ]
    assert (tmp_path / "newest").read_text() == "mid_partial\n"
    for partitions, first in ((2, 0), (2, 1), (3, 0), (1, 0), (1, 1)):
        settings = {"partitions": partitions, "microbatches": 2}
        assert_same(ranks.run(resume_and_train, settings, str(tmp_path), True, first, None), expected)


def test_a_full_checkpoint_resumes_and_loads_without_the_library(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(train_and_save, dict(TWO), str(tmp_path), False)[0]
    assert {path.name for path in tmp_path.iterdir()} == {"mid", "user_content_mid", "newest"}
    for partitions, first in ((3, 0), (2, 1)):
        settings = {"partitions": partitions, "microbatches": 2}
        assert_same(ranks.run(resume_and_train, settings, str(tmp_path), False, first, "mid"), expected)

    saved = torch.load(tmp_path / "mid", weights_only=True)
    module, inputs, target = models.build("Tied")
    optimizer = plain_optimizer(module)
    module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    losses = []
    for _ in range(AFTER):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert_same([(losses, module.state_dict())], expected)


@pytest.mark.parametrize("partial", [True, False])
def test_replicas_save_one_checkpoint_and_resume_from_one(ranks: Ranks, tmp_path: Path, partial: bool) -> None:
    expected = ranks.run(train_and_save, dict(FOUR), str(tmp_path), partial)[0]
    # The parameters are small, so the first replica writes them.
    assert len(list(tmp_path.rglob("rank-*.safetensors"))) == (2 if partial else 0)
    for parameters in (FOUR, TWO, {**FOUR, "partitions": 1}):
        assert_same(ranks.run(resume_and_train, dict(parameters), str(tmp_path), partial, 0, None), expected)


def gather_on_the_first_replica() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Tied")
    train(1)
    if smp.dp_rank() == 0:
        local = model.local_state_dict()
        shared = [*map(id, local.values())]
        assert len(set(shared)) == len(shared) - ("head.weight" in local)
        return model.state_dict(), optimizer.state_dict()
    return None


def test_state_dicts_are_gathered_inside_a_pipeline(ranks: Ranks) -> None:
    zero, one, two, three = ranks.run(gather_on_the_first_replica, dict(FOUR))
    assert two is three is None
    assert zero[0].keys() == one[0].keys() == models.build("Tied")[0].state_dict().keys()
    assert zero[1]["state"].keys() == one[1]["state"].keys()
    assert zero[0]["head.weight"] is zero[0]["embed.weight"]


def local_round_trip(file: str) -> bool:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Chain")
    train(1)
    smp.save({"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}, file)
    losses = train(2)
    part = smp.load(file)
    assert part["model"]["_smp_is_partial"]
    model.load_state_dict(part["model"])
    optimizer.load_state_dict(part["optimizer"])
    return losses == train(2)


@pytest.mark.parametrize("parameters", [TWO, FOUR])
def test_local_state_dicts_load_on_the_rank_that_saved_them(
    ranks: Ranks, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    assert set(ranks.run(local_round_trip, dict(parameters), str(tmp_path / "part.pt"))) == {True}
    assert {path.name for path in tmp_path.iterdir()} == {"part.pt_0", "part.pt_1"}


def save_several(folder: str) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, _, train = build("Chain")
    train(1)
    for tag in ("a", "b", "c"):
        smp.save_checkpoint(folder, tag, model=model, num_kept_partial_checkpoints=2)
    smp.save_checkpoint(folder, "whole.pt", partial=False, model=model)


def test_the_oldest_partial_checkpoints_are_removed(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(save_several, dict(TWO), str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"b_partial", "c_partial", "whole.pt", "user_content_whole.pt", "newest"}
    assert (tmp_path / "newest").read_text() == "whole.pt\n"


def resume_damaged(folder: str, name: str, options: dict[str, Any]) -> tuple[str, bool]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    model, _, train = build(name)
    train(1)
    before = {key: value.clone() for key, value in model.local_state_dict().items() if torch.is_tensor(value)}
    with pytest.raises(ParallelError) as caught:
        smp.resume_from_checkpoint(folder, **options)
    after = model.local_state_dict()
    return str(caught.value), all(torch.equal(after[key], value) for key, value in before.items())


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    ranks.run(train_and_save, dict(TWO), str(folder), True, ("earlier",))
    return folder


SECOND = "partial/rank-00001.safetensors"


def invert_last(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "name", "options", "message"),
    [
        (lambda folder: None, "Chain", {}, "the checkpoint is of another model: missing"),
        (lambda folder: (folder / f"mid_{SECOND}").unlink(), "Tied", {"tag": "mid"}, "rank 1 on .* is missing; bring"),
        (lambda folder: truncate(folder / f"mid_{SECOND}"), "Tied", {"tag": "mid"}, "00001.* is torn: it has"),
        (
            lambda folder: invert_last(folder / f"mid_{SECOND}"),
            "Tied",
            {"tag": "mid"},
            "00001.* is damaged: the checks",
        ),
        (
            lambda folder: shutil.copy(folder / f"earlier_{SECOND}", folder / "mid_partial"),
            "Tied",
            {"tag": "mid"},
            "00001.* is foreign: it is of the save",
        ),
        (lambda folder: (folder / "newest").unlink(), "Tied", {}, "has no file `newest`"),
        (lambda folder: None, "Tied", {"tag": "other"}, "no partial checkpoint 'other' with a model"),
        (lambda folder: None, "Tied", {"partial": False}, "is a partial one; pass partial=True"),
        (lambda folder: None, "Tied", {"tag": "../mid"}, "cannot be a checkpoint's tag"),
        (lambda folder: None, "Tied", {"load_sharded_optimizer_state": False}, "optimizer states are not sharded"),
    ],
)
def test_a_bad_checkpoint_is_named_on_every_rank_and_changes_nothing(
    ranks: Ranks, tmp_path: Path, saved: Path, damage: Any, name: str, options: dict[str, Any], message: str
) -> None:
    checkpoint = shutil.copytree(saved, tmp_path / "checkpoint")
    damage(checkpoint)
    for text, unchanged in ranks.run(resume_damaged, dict(TWO), str(checkpoint), name, options):
        assert unchanged
        assert re.search(message, text), text


def resume_from_the_earlier_one(folder: str, problem: str) -> str:
    import herringbone_parallel.torch.model_parallel.api as smp

    build("Tied")
    with pytest.warns(UserWarning, match=f"{problem}.*'earlier_partial' is used instead"):
        smp.resume_from_checkpoint(folder)
    return "resumed"


@pytest.mark.parametrize("problem", ["is missing", "is damaged: the checksum differs"])
def test_a_newest_checkpoint_that_is_not_whole_counts_as_absent(
    ranks: Ranks, tmp_path: Path, saved: Path, problem: str
) -> None:
    checkpoint = shutil.copytree(saved, tmp_path / "checkpoint")
    file = checkpoint / f"mid_{SECOND}"
    if problem == "is missing":
        file.unlink()
    else:
        # One value, which only the second rank reads: both pass over the checkpoint.
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    assert ranks.run(resume_from_the_earlier_one, dict(TWO), str(checkpoint), problem) == ["resumed"] * 2


def resume_from_own_folders(folder: str) -> str:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    build("Tied")
    with pytest.raises(ParallelError) as caught:
        smp.resume_from_checkpoint(f"{folder}/{smp.rank()}")
    return str(caught.value)


def test_ranks_that_find_different_checkpoints_resume_from_none(ranks: Ranks, tmp_path: Path, saved: Path) -> None:
    for rank, newest in enumerate(("mid_partial", "earlier_partial")):
        shutil.copytree(saved, tmp_path / str(rank))
        (tmp_path / str(rank) / "newest").write_text(newest)
    for text in ranks.run(resume_from_own_folders, dict(TWO), str(tmp_path)):
        assert re.search(
            r"have found different checkpoints in .*: earlier_partial \(\w+\), mid_partial \(\w+\)\. Bring", text
        )


def save_in_the_background(folder: str) -> tuple[bool, Any]:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Tied")
    train(BEFORE)
    optimizer.param_groups[0]["lr"] = 0.01
    content = {"step": BEFORE, "arguments": argparse.Namespace(rate=0.05)}
    smp.async_save_checkpoint(folder, "mid", model=model, optimizer=optimizer, user_content=content)
    # The steps change the parameters while the checkpoint is written.
    return train(AFTER), model.state_dict()


def test_a_checkpoint_of_the_background_is_of_the_moment_of_the_call(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(save_in_the_background, dict(TWO), str(tmp_path))[0]
    # The ranks leave the library before they run the next function, and wait for the checkpoint then.
    assert_same(ranks.run(resume_and_train, dict(TWO), str(tmp_path), True, 0, None), expected)


def save_as_earlier_releases(folder: str) -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, train = build("Tied")
    train(BEFORE)
    optimizer.param_groups[0]["lr"] = 0.01
    parts = Path(folder, "mid_partial")
    parts.mkdir(exist_ok=True)
    for kind, part in (("model", model), ("optimizer", optimizer)):
        content = {"save": "1", "partitions": 2, "content": part.local_state_dict()}
        torch.save(content, parts / f"{kind}_{smp.pp_rank()}_0.pt")
    torch.save({"step": BEFORE, "arguments": argparse.Namespace(rate=0.05)}, parts / "user_content.pt")
    Path(folder, "newest").write_text("mid_partial\n")
    return train(AFTER), model.state_dict()


def test_a_checkpoint_of_an_earlier_release_is_read(ranks: Ranks, tmp_path: Path) -> None:
    expected = ranks.run(save_as_earlier_releases, dict(TWO), str(tmp_path))[0]
    for partitions in (2, 1):
        settings = {"partitions": partitions, "microbatches": 2}
        assert_same(ranks.run(resume_and_train, settings, str(tmp_path), True, 0, None), expected)

    (tmp_path / "mid_partial/optimizer_0_0.pt").unlink()
    for text, unchanged in ranks.run(resume_damaged, dict(TWO), str(tmp_path), "Tied", {}):
        assert unchanged
        assert "written by 2 partitions, but has 1 optimizer file" in text


def save_early(folder: str) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer, _ = build("Chain")
    smp.save_checkpoint(folder, "early", model=model, optimizer=optimizer)


def test_a_partial_checkpoint_before_the_partition_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"not partitioned yet\. Run a step"):
        ranks.run(save_early, dict(TWO), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
