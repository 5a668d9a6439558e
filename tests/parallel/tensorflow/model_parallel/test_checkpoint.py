"""A killed job continues from its last checkpoint with the same losses, on any number of partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("model", "optimizer", "placement"),
    [("reused state", "adam", [0, 1, 0]), ("tied", "rmsprop", [0, 1, 0]), ("functional", "adam", [1, 1, 1])],
    ids=["reused state", "tied", "first rank without variables"],
)
def test_losses_go_on_on_two_partitions_and_on_one(
    ranks: Ranks, tmp_path: Path, model: str, optimizer: str, placement: list[int]
) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    folder = str(tmp_path / "not there yet")
    answers = ranks.run("checkpoints.undisturbed", 2, model, placement, folder, optimizer, 5, 2, **two)
    losses, path = answers[0]
    assert answers[1] == answers[0]
    one = ranks.model_parallel(partitions=1, microbatches=2)
    again = ranks.run("checkpoints.taken_up", 2, model, [1, 0, 0], folder, optimizer, 5, **two)
    again += ranks.run("checkpoints.taken_up", 1, model, [0], folder, optimizer, 5, **one)
    for resumed in again:
        assert resumed[1] == path
        np.testing.assert_allclose(resumed[0], losses[2:], rtol=0, atol=1e-6)


def test_a_killed_job_leaves_a_checkpoint_that_a_new_one_takes_up(ranks: Ranks, tmp_path: Path) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    (succeeded, message), second = ranks.answers("checkpoints.killed", 2, "conv", [0, 1], str(tmp_path), "adam", **two)
    assert not succeeded
    assert "rank 1 on algo-2 is lost" in message
    assert second == (False, "died")
    losses, _ = ranks.run("checkpoints.undisturbed", 2, "conv", [0, 1], str(tmp_path / "other"), "adam", 5, 2, **two)[0]
    for resumed, path in ranks.run("checkpoints.taken_up", 2, "conv", [0, 1], str(tmp_path), "adam", 5, **two):
        assert path == str(tmp_path / "ckpt-1")
        np.testing.assert_allclose(resumed, losses[2:], rtol=0, atol=1e-6)


def test_the_newest_are_kept_and_plain_tensorflow_reads_them(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run("checkpoints.kept", 2, str(tmp_path), **ranks.model_parallel(partitions=2, microbatches=2))
    files, names = answers[0]
    assert {name.partition(".")[0] for name in files} == {"checkpoint", "ckpt-3", "ckpt-4"}
    assert "steps" in names
    assert sum(name.startswith("model/") for name in names) == sum("kernel" in n or "bias" in n for n in names)


def test_what_is_not_a_checkpoint_of_this_job_is_refused_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    two = ranks.model_parallel(partitions=2, microbatches=2)
    assert ranks.run("checkpoints.refused", 2, str(tmp_path), None, **two) == ["", ""]
    for message in ranks.run("checkpoints.refused", 2, str(tmp_path), str(tmp_path / "ckpt-7"), **two):
        assert "ckpt-7 is not a checkpoint: there is no" in message

    ranks.run("checkpoints.undisturbed", 2, "conv", [0, 1], str(tmp_path), "adam", 1, 1, **two)
    for message in ranks.run("checkpoints.refused", 2, str(tmp_path), None, **two):
        assert "ckpt-1 is a checkpoint of another model" in message
        assert "it has no 'model/" in message

    ranks.run("checkpoints.undisturbed", 2, "dense", [0, 1], str(tmp_path / "torn"), "adam", 1, 1, **two)
    data = next((tmp_path / "torn").glob("ckpt-1.data-*"))
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    for message in ranks.run("checkpoints.refused", 2, str(tmp_path / "torn"), None, **two):
        assert "ckpt-1 is damaged, or incomplete" in message


def test_nothing_is_saved_before_the_first_step(ranks: Ranks, tmp_path: Path) -> None:
    two = ranks.model_parallel(partitions=2)
    for message in ranks.run("checkpoints.too_early", 2, str(tmp_path), **two):
        assert "before the first step no variable has a value" in message
