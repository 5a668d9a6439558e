"""Each way to train goes on in the middle of an epoch: equal in bits on the same ranks, each sample once on others."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.torch.position import loops
from tests.parallel.torch.ranks import Ranks


def train(name: str, folder: str, log: str, options: dict[str, Any]) -> None:
    loops.LOOPS[name](folder, log, **options)


def lines(log: Path, ranks: int) -> list[list[Any]]:
    return [[json.loads(line) for line in Path(f"{log}.{rank}").read_text().splitlines()] for rank in range(ranks)]


def start(ranks: Ranks, name: str, size: int, base: Path, log: str, **options: Any) -> list[list[Any]]:
    if name == "smp":
        partitions = options.pop("partitions")
        parameters = {"partitions": partitions, "replicas": size // partitions, "microbatches": 2, "ddp": True}
        ranks.run(train, parameters, name, str(base), str(base) + log, options)
    else:
        degree = size if name == "tsm" else 1
        ranks.shard(train, size, {"hybrid_shard_degree": degree}, name, str(base), str(base) + log, options)
    return lines(Path(str(base) + log), size)


def samples(results: list[list[Any]], epoch: int) -> Counter[int]:
    return Counter(index for rank in results for number, _, *more in rank if number == epoch for index in more[0])


@pytest.mark.parametrize(
    ("name", "size", "layout", "other", "other_layout"),
    [
        ("ddp", 2, {}, 1, {}),
        ("fsdp2", 2, {}, 1, {}),
        ("fsdp2", 2, {}, 4, {"mesh": (2, 2)}),
        ("tsm", 2, {}, 4, {}),
    ],
)
def test_goes_on(
    ranks: Ranks, tmp_path: Path, name: str, size: int, layout: Any, other: int, other_layout: Any
) -> None:
    whole = start(ranks, name, size, tmp_path / "a", ".log", **layout)
    before = start(ranks, name, size, tmp_path / "b", ".before", stop=6, **layout)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    after = start(ranks, name, size, tmp_path / "b", ".after", **layout)
    for rank in range(size):
        assert before[rank] + after[rank] == whole[rank]
    rest = start(ranks, name, other, tmp_path / "c", ".other", **other_layout)
    assert all(line[-1][0] == "end" for line in rest)
    for epoch in range(loops.EPOCHS):
        seen = samples([*before, *rest], epoch)
        assert set(seen) == set(range(loops.SAMPLES))
        # Repeated in the last round of each start.
        assert seen.total() - loops.SAMPLES < size + other
