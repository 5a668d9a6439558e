"""`Training` with whole files: on the same ranks equal in bits, on others each sample once."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from herringbone_parallel.torch.position.api import Shards, Training
from tests.parallel.torch.ranks import Ranks

# Of each file, the number of samples.
FILES = [4, 8, 2, 6, 4, 4, 2, 6, 8, 4]
SAMPLES = [(file, number) for file, length in enumerate(FILES) for number in range(length)]


def read(file: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    numbers = list(range(FILES[file]))
    random.shuffle(numbers)
    return ((file, number, torch.rand(2) + file) for number in numbers)


def train(folder: str, stop: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    shards = Shards(range(len(FILES)), read, seed=5)
    loader: DataLoader[Any] = DataLoader(shards, batch_size=2)
    training = Training(folder=folder, model=model, optimizer=optimizer, loader=loader)
    training.resume()
    seen = []
    with torch.distributed.algorithms.join.Join([model]):
        for epoch in range(training.epoch, 1):
            shards.set_epoch(epoch)
            for files, numbers, inputs in loader:
                optimizer.zero_grad()
                loss = model(inputs).square().mean()
                loss.backward()
                optimizer.step()
                seen.append((files.tolist(), numbers.tolist(), loss.item()))
                if training.step == stop:
                    training.save()
                    return {"seen": seen}
    return {"seen": seen, "weights": [value.tolist() for value in model.parameters()]}


def samples(results: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    batches = [(files, numbers) for rank in results for files, numbers, _ in rank["seen"]]
    return Counter(pair for files, numbers in batches for pair in zip(files, numbers, strict=True))


def test_goes_on_with_whole_files(ranks: Ranks, tmp_path: Path) -> None:
    def start(size: int, folder: str, stop: int = 0) -> list[dict[str, Any]]:
        return ranks.shard(train, size, {"hybrid_shard_degree": 1}, str(tmp_path / folder), stop)

    whole = start(2, "a")
    assert samples(whole) == Counter(SAMPLES)
    before = start(2, "b", stop=4)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    after = start(2, "b")
    assert [one["seen"] + two["seen"] for one, two in zip(before, after, strict=True)] == [one["seen"] for one in whole]
    assert [one["weights"] for one in after] == [one["weights"] for one in whole]
    assert samples([*before, *start(3, "c")]) == Counter(SAMPLES)
