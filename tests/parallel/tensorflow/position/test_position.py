"""Trainings of Keras and TensorFlow that are stopped in the middle of an epoch, and go on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow

SAMPLES = 22
CASES = {
    "no samples": "give it Samples(...)",
    "dataset": "'data' is a _TensorSliceDataset, which begins at its first element",
    "generator": "'iterator' has no place that TensorFlow can write",
    "random function": "'iterator' has no place that TensorFlow can write",
    "number": "'other' is a int: a part is a model",
    "drawing": "`read` draws from Python's or NumPy's random numbers",
    "steps": "fit(steps_per_epoch=2) of 3 batches",
    "initial epoch": "fit begins epoch 2, and the data is in epoch 1",
    "second fit": "a Training is for one fit",
    "ahead": "waits for a step of the optimizer",
    "no optimizer": "the data has no optimizer beside it",
    "other model": "the checkpoint's part 'model' has 2 variables, and 2 here",
    "other data": "the checkpoint is of other data: 6 samples, and now 7",
    "other order": "the order of epoch 0 is not that of the checkpoint",
    "callback": "keeps a object in 'kept'",
    "nobody joined": "several ranks, and none has joined the others",
}


def _fit(ranks: Ranks, folder: Path, stops: list[int], order: str, **options: Any) -> Any:
    for stop in stops:
        [steps] = ranks.run("positions.loop", 1, str(folder), f"{folder}.log", stop, order, options)
    return steps


@pytest.fixture(scope="module")
def whole(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _fit(ranks, tmp_path_factory.mktemp("whole"), [0], "last")


@pytest.mark.parametrize(
    ("stops", "order", "options"),
    # In the middle of the first epoch, and in the second one, which has the sixth step.
    [([3, 9, 0], "first", {}), ([4, 0], "last", {"steps_per_execution": 2}), ([5, 0], "last", {"workers": 2})],
)
def test_fit_goes_on_as_if_it_had_not_been_stopped(
    ranks: Ranks, tmp_path: Path, whole: Any, stops: list[int], order: str, options: dict[str, Any]
) -> None:
    steps = _fit(ranks, tmp_path / "stopped", stops, order, **options)
    # Of several steps in one execution, only the last one is written down.
    assert steps[-1] == whole[-1] if "steps_per_execution" in options else steps == whole


def test_fit_on_two_ranks_goes_on_with_equal_bits(ranks: Ranks, tmp_path: Path) -> None:
    whole = ranks.run("positions.replicated", 2, str(tmp_path / "whole"), str(tmp_path / "whole.log"), 0)
    for stop in (2, 0):
        steps = ranks.run("positions.replicated", 2, str(tmp_path / "stopped"), str(tmp_path / "stopped.log"), stop)
    assert steps == whole
    # A rank has its own statistics of batch normalisation, and its own samples.
    assert whole[0][-1] != whole[1][-1]
    first = [index for steps in whole for epoch, samples, *_ in steps if epoch == 0 for index in samples]
    assert sorted(first) == list(range(SAMPLES))


@pytest.mark.parametrize("case", CASES)
def test_what_has_no_place_is_refused_by_name(ranks: Ranks, tmp_path: Path, case: str) -> None:
    [text] = ranks.run("refused_positions.error", 1, case, str(tmp_path))
    assert text.startswith("ParallelError: ")
    assert CASES[case] in text


def test_an_iterator_of_tf_data_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run("refused_positions.iterated", 1, str(tmp_path)) == [True]


def _loop(ranks: Ranks, folder: Path, size: int, stop: int, batch_size: int = 4, dropout: float = 0.3) -> Any:
    return ranks.run("positions.own_loop", size, str(folder), f"{folder}.log", stop, batch_size, dropout)


def test_own_loop_on_two_ranks_goes_on_with_equal_bits(ranks: Ranks, tmp_path: Path) -> None:
    whole = _loop(ranks, tmp_path / "whole", 2, 0, 2)
    for stop in (3, 8, 0):
        steps = _loop(ranks, tmp_path / "stopped", 2, stop, 2)
    assert steps == whole
    assert whole[0] != whole[1]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_own_loop_on_other_ranks_uses_each_sample_once(ranks: Ranks, tmp_path: Path, before: int, after: int) -> None:
    _loop(ranks, tmp_path / "run", before, 2, 4 // before)
    first = [samples for steps in _loop_steps(tmp_path / "run", before) for epoch, samples in steps if epoch == 0]
    (tmp_path / "run.log-0").unlink()
    rest = _loop(ranks, tmp_path / "run", after, 0, 4 // after)
    seen = Counter(index for samples in first for index in samples)
    seen += Counter(index for steps in rest for epoch, samples, *_ in steps if epoch == 0 for index in samples)
    assert seen == Counter(range(SAMPLES))


def _loop_steps(folder: Path, size: int) -> Any:
    import json

    for rank in range(size):
        steps = [json.loads(line) for line in Path(f"{folder}.log-{rank}").read_text().splitlines()]
        yield [(epoch, samples) for epoch, _, samples, *_ in steps]
