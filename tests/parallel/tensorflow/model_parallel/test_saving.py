"""A model that was trained over ranks is saved as a whole, and plain Keras loads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("model", ["batch norm", "dropout", "two inputs", "dict output", "sequential"])
def test_what_is_saved_predicts_the_same(ranks: Ranks, tmp_path: Path, model: str) -> None:
    answers = ranks.run("saving.saved", 2, model, [0, 1, 1, 0], str(tmp_path), **ranks.model_parallel(partitions=2))
    differences, loss = answers[0]
    assert len(differences) >= 2
    assert max(differences) <= 1e-6
    assert answers[1] == ([], loss), "saving does not change the training"


def test_who_saves_too_early_or_to_nowhere_hears_of_it_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    for messages in ranks.run("saving.mistakes", 2, str(tmp_path), **ranks.model_parallel(partitions=2)):
        early, nowhere, file, alone = messages
        assert early.startswith("ParallelError: save_model: call it after the first step and outside of one")
        assert nowhere.startswith(f"ParallelError: save_model('{tmp_path}/file/below'): ")
        assert "Keras would write those of one. Save a SavedModel folder: model.save_model(folder)" in file
        assert "Every rank of a pipeline makes the same calls in the same order, without `if smp.rank() == 0`" in alone


def test_a_file_past_the_split_model_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    two = ranks.model_parallel(partitions=2)
    for errors, served, set_weight, left in ranks.run("saving.past_the_split_model", 2, str(tmp_path), **two):
        assert "Keras would export the layers of one rank" in errors.pop("export of the split model")
        # Its trace holds a variable of TensorFlow, which is empty now.
        assert errors.pop("traced") != "nothing"
        for use, error in errors.items():
            assert "ParallelError: " in error, use
            assert "is a weight of another rank, and this rank has no value of it" in error, use
        assert served == ["nothing"] * len(served)
        assert (set_weight, left) == (3.0, 0)
