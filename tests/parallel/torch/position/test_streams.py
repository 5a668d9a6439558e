"""Datasets without indices go on in the middle of an epoch: by a state of their own, or by whole files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core import position
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.api import Shards
from herringbone_parallel.torch.position.loader import track
from herringbone_parallel.torch.position.tracker import Place

FILES = {"a": 7, "b": 2, "c": 0, "d": 9, "e": 4, "f": 1, "g": 6}
SAMPLES = [f"{path}{number}" for path, length in FILES.items() for number in range(length)]


def read(path: str) -> Iterator[tuple[str, float]]:
    """Yield the samples of a file in an order that is drawn at its begin, augmented."""
    numbers = list(range(FILES[path]))
    random.shuffle(numbers)
    for number in numbers:
        yield f"{path}{number}", random.random() + torch.rand(()).item()


class Counting(IterableDataset[Any]):
    """A stream with a state, whose workers divide it; it counts its epochs itself."""

    def __init__(self) -> None:
        self.epoch = self.next = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # The last worker has most.
        while self.next < 5 + 4 * worker:
            self.next += 1
            yield self.epoch, worker, self.next, random.random()
        self.next, self.epoch = 0, self.epoch + 1
        assert worker < workers

    def state_dict(self) -> Any:
        return {"epoch": self.epoch, "next": self.next, "generator": torch.Generator().manual_seed(1).get_state()}

    def load_state_dict(self, state: Any) -> None:
        assert torch.equal(state["generator"], torch.Generator().manual_seed(1).get_state())
        self.epoch, self.next = state["epoch"], state["next"]


def shards(ranks: int = 1, rank: int = 0) -> Shards:
    return Shards(sorted(FILES), read, seed=3, num_replicas=ranks, rank=rank)


def train(
    dataset: Any, *, stop: int = 0, saved: Any = None, epochs: int = 2, kind: Any = DataLoader, **options: Any
) -> tuple[list[Any], Any]:
    """Train to an epoch, or to the step `stop`, or from what was saved; return what it saw, and the place."""
    torch.manual_seed(3)
    random.seed(3)
    loader: DataLoader[Any] = kind(dataset, collate_fn=list, **options)
    tracker = track(loader)
    first = 0
    if saved is not None:
        place, numbers, *others = saved
        tracker.resume(place, lambda: others)
        random_state.restore(numbers)
        first = place.epoch
    seen: list[Any] = []
    steps = 0
    for epoch in range(first, epochs):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        for batch in loader:
            seen.append((epoch, batch, random.random()))
            tracker.step()
            if (steps := steps + 1) == stop:
                return seen, (tracker.place(), random_state.take())
    return seen, (tracker.place(), random_state.take())


@pytest.mark.parametrize(("made", "workers"), [(Counting, 0), (Counting, 2), (shards, 0), (shards, 2)])
def test_goes_on_with_the_same_samples_and_numbers(made: Any, workers: int) -> None:
    options = {"batch_size": 3, "num_workers": workers}
    whole, _ = train(made(), **options)
    for stop in (4, len(whole) // 2, len(whole) - 1):
        before, saved = train(made(), stop=stop, **options)
        after, _ = train(made(), saved=saved, **options)
        assert before + after == whole
        # A second stop, in what was resumed.
        again, twice = train(made(), saved=saved, stop=2, **options)
        rest, _ = train(made(), saved=twice, **options)
        assert before + again + rest == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on_between_epochs(workers: int) -> None:
    whole, _ = train(Counting(), batch_size=3, num_workers=workers)
    before, saved = train(Counting(), epochs=1, batch_size=3, num_workers=workers)
    after, _ = train(Counting(), saved=saved, batch_size=3, num_workers=workers)
    assert before + after == whole


def names(seen: list[Any]) -> list[str]:
    return [sample[0] for _, batch, _ in seen for sample in batch]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (1, 2), (2, 1)])
def test_whole_files_go_on_with_other_readers(ranks: int, workers: int) -> None:
    halves = [train(shards(2, rank), stop=3, batch_size=2, num_workers=2) for rank in range(2)]
    places = [place for _, (place, *_) in halves]
    _, numbers = halves[0][1]
    seen = [sample for half, _ in halves for sample in names(half)]
    augmented = {}
    for rank in range(ranks):
        saved = (places[0], numbers, *places[1:])
        rest, _ = train(shards(ranks, rank), saved=saved, epochs=1, batch_size=2, num_workers=workers)
        seen += names(rest)
        augmented |= dict(sample for _, batch, _ in rest for sample in batch)
    assert Counter(seen) == Counter(SAMPLES)
    if workers:
        # From the seed, the epoch and the sample's place.
        whole = dict(
            sample
            for rank in range(2)
            for _, batch, _ in train(shards(2, rank), epochs=1, batch_size=2, num_workers=2)[0]
            for sample in batch
        )
        assert augmented.items() <= whole.items()


def test_files_that_are_done_are_not_opened() -> None:
    opened: list[str] = []

    def noted(path: str) -> Iterator[Any]:
        opened.append(path)
        return read(path)

    def dataset() -> Shards:
        return Shards(sorted(FILES), noted, shuffle=False)

    _, saved = train(dataset(), stop=4, batch_size=3)
    opened.clear()
    train(dataset(), saved=saved, epochs=1, batch_size=3)
    assert opened == ["d", "e", "f", "g"]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=8),
    parts=st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 7), min_size=4, max_size=4)), max_size=3),
)
def test_each_sample_comes_once_with_changing_readers(lengths: list[int], parts: list[Any]) -> None:
    order = list(range(len(lengths)))
    random.Random(1).shuffle(order)
    begun, seen = position.Begun(), []
    for readers, takes in [*parts, (1, [100])]:
        places = []
        for reader, take in enumerate(takes[:readers]):
            samples = []
            done = used = 0
            for done, opened in enumerate(position.part(order, begun, readers, reader)):
                for number in range(opened.used, lengths[opened.shard]):
                    if len(samples) < take:
                        samples.append((opened.shard, number))
                        last = done, number + 1
            seen += samples
            if samples:
                done, used = last
                places.append(position.Reader(readers, reader, done, used))
        begun = position.merged(order, begun, places)
    assert Counter(seen) == Counter((shard, number) for shard in order for number in range(lengths[shard]))


class Bare(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_what_cannot_go_on_is_refused_by_name() -> None:
    with pytest.raises(ParallelError, match="the IterableDataset Bare has no state_dict"):
        track(DataLoader(Bare()))
    with pytest.raises(ParallelError, match="persistent_workers=True keeps copies of Counting"):
        track(DataLoader(Counting(), num_workers=1, persistent_workers=True))
    _, (place, _) = train(Counting(), stop=2, batch_size=2)
    with pytest.raises(ParallelError, match="Counting was read by 1 ranks with 0 workers, and is now by 1 with 2"):
        track(DataLoader(Counting(), num_workers=2)).resume(place)
    _, (place, _) = train(shards(), stop=2, batch_size=2)
    for paths, words in ((["a"], "7 shards, and now 1"), (sorted(FILES)[::-1], "in another order")):
        loader: DataLoader[Any] = DataLoader(Shards(paths, read))
        track(loader).resume(place)
        with pytest.raises(ParallelError, match=words):
            list(loader)
    with pytest.raises(ParallelError, match="ranks begin at 0"):
        Shards([], read, num_replicas=2, rank=2)
    with pytest.raises(ParallelError, match="other data: 40 samples"):
        track(DataLoader(shards())).resume(Place(0, 4, 1, 40))
