"""Automatic partitions: the same figures as in one process, and a partition file for a later job."""

from __future__ import annotations

from pathlib import Path

import pytest

from herringbone_contract.model_parallel.partition_file import parse
from tests.parallel.tensorflow.model_parallel.test_equality import compare
from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(("model", "optimize"), [("dense", "speed"), ("tied", "memory"), ("lstm", "memory")])
def test_an_automatic_partition_trains_the_same_model(ranks: Ranks, model: str, optimize: str) -> None:
    variables = ranks.model_parallel(partitions=2, microbatches=2, auto_partition=True, optimize=optimize)
    answers = ranks.run("pipelines.owners", 2, model, [0], **variables)
    compare([rank for rank, _ in answers], ranks.run("pipelines.alone", 1, model, [(8, 2)])[0][0], model)
    (_, first), (_, second) = answers
    assert first == second
    assert set(first) == {0, 1}
    # The partition is contiguous: no layer comes back to a partition that was left.
    assert model != "dense" or first == sorted(first)


def test_a_partition_file_is_written_and_loaded_by_the_first_rank(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "partition.json"
    parameters = {"partitions": 2, "auto_partition": True, "partition_file": str(path)}
    answers = ranks.run("pipelines.owners", 2, "dense", [0], **ranks.model_parallel(**parameters))
    file = parse(path.read_bytes())
    assert sorted(file.assigned.values()) == answers[0][1][::2]
    swapped = path.read_text().replace('"partition": 1', '"partition": 2').replace('"partition": 0', '"partition": 1')
    path.write_text(swapped.replace('"partition": 2', '"partition": 0'))
    loaded = ranks.run("pipelines.owners", 2, "dense", [0], **ranks.model_parallel(**parameters, load_partition=True))
    assert loaded[0][1] == loaded[1][1] == [1 - owner for owner in answers[0][1]]


def test_a_file_of_another_model_is_refused_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    parameters = {"partitions": 2, "auto_partition": True, "partition_file": str(tmp_path / "none.json")}
    variables = ranks.model_parallel(**parameters, load_partition=True)
    for ok, text in ranks.answers("pipelines.owners", 2, "dense", [0], **variables):
        assert not ok
        assert "cannot be read: No such file or directory" in text
