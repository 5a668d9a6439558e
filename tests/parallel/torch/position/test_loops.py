"""Each way to train goes on in the middle of an epoch: equal in bits on the same ranks, each sample once on others."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from herringbone_contract.errors import ParallelError
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


def samples(results: list[list[Any]], epoch: int, readers: int) -> Counter[int]:
    """Return the samples of an epoch; of a pipeline, so many ranks read the same batches."""
    counted = Counter(index for rank in results for number, _, *more in rank if number == epoch for index in more[0])
    assert all(count % readers == 0 for count in counted.values())
    return Counter({index: count // readers for index, count in counted.items()})


def of_all_ranks(folder: str) -> str:
    from herringbone_parallel.torch.model_parallel import api
    from herringbone_parallel.torch.position.api import Training

    model = api.DistributedModel(loops.net(0.0))
    optimizer = api.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = loops.loader_of(loops.Options(samples=8), dist.get_world_size(), dist.get_rank())
    with pytest.raises(ParallelError) as refused:
        Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
    with pytest.raises(ParallelError, match="before the first step"):
        Training(folder=folder, model=model).save()
    return str(refused.value)


def test_a_pipeline_whose_ranks_read_apart_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    for text in ranks.run(of_all_ranks, {"partitions": 2, "microbatches": 2}, str(tmp_path)):
        assert "'loader' is divided among 2 ranks, and there are 1 replicas" in text


@pytest.mark.parametrize(
    ("name", "size", "layout", "other", "other_layout"),
    [
        ("ddp", 2, {}, 1, {}),
        ("fsdp2", 2, {}, 1, {}),
        ("fsdp2", 2, {}, 4, {"mesh": (2, 2)}),
        ("tsm", 2, {}, 4, {}),
        ("smp", 2, {"partitions": 2, "samples": 40}, 4, {"partitions": 2, "samples": 40, "batch_size": 2}),
        ("smp", 4, {"partitions": 2, "samples": 40}, 2, {"partitions": 2, "samples": 40}),
        ("smp", 4, {"partitions": 2, "samples": 40}, 4, {"partitions": 4, "samples": 40}),
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
        seen = samples(before, epoch, layout.get("partitions", 1))
        seen += samples(rest, epoch, other_layout.get("partitions", 1))
        number = layout.get("samples", loops.SAMPLES)
        assert set(seen) == set(range(number))
        # The last round of an epoch repeats less than one sample a rank.
        assert seen.total() - number < max(size, other)
