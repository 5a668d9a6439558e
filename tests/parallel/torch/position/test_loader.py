"""A loader goes on in the middle of an epoch: the same order, the same augmentation, and every sample once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.position import share
from herringbone_parallel.torch.position import random_state
from herringbone_parallel.torch.position.loader import track
from herringbone_parallel.torch.position.tracker import Place

SAMPLES = 37


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() + float(np.random.rand()) + torch.rand(()).item()


def shuffled(_dataset: Any) -> dict[str, Any]:
    return {"shuffle": True, "batch_size": 4}


def of_a_rank(dataset: Any) -> dict[str, Any]:
    return {"sampler": DistributedSampler(dataset, 2, 1), "batch_size": 4}


def own_generator(_dataset: Any) -> dict[str, Any]:
    return {"shuffle": True, "batch_size": 4, "generator": torch.Generator().manual_seed(9)}


def in_batches(dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": BatchSampler(RandomSampler(dataset), 4, drop_last=True)}


class ByLength(Sampler[list[int]]):
    """Batches of samples of like length; their order is drawn from torch's numbers, or from a seed and the epoch."""

    def __init__(self, seed: int | None) -> None:
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed + self.epoch)
        order = sorted(torch.randperm(SAMPLES, generator=generator).tolist(), key=lambda index: index // 10)
        batches = [order[begin : begin + 3 + begin % 2] for begin in range(0, SAMPLES, 3)]
        return iter(batches[number] for number in torch.randperm(len(batches), generator=generator).tolist())

    def __len__(self) -> int:
        return -(-SAMPLES // 3)


def by_length(_dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": ByLength(None)}


def by_length_and_epoch(_dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": ByLength(5)}


def listed(_dataset: Any) -> dict[str, Any]:
    return {"batch_sampler": [[3, 1], [4], [1, 5, 9], [2, 6], [5], [3]]}


def weighted(_dataset: Any) -> dict[str, Any]:
    return {"sampler": WeightedRandomSampler([1.0] * SAMPLES, 30), "batch_size": 4}


def a_part(_dataset: Any) -> dict[str, Any]:
    return {"sampler": SubsetRandomSampler(range(5, 30)), "batch_size": None}


Made = Callable[[Any], dict[str, Any]]


def train(
    made: Made, *, stop: int = 0, saved: Any = None, kind: type[DataLoader[Any]] = DataLoader, **options: Any
) -> tuple[list[Any], Any]:
    """Train three epochs, or to the step `stop`, or from what was saved there; return what it saw, and the place."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    dataset = Augmented()
    loader: DataLoader[Any] = kind(dataset, **made(dataset), **options)
    tracker = track(loader)
    first = 0
    if saved is not None:
        place, numbers = saved
        tracker.resume(place)
        random_state.restore(numbers)
        first = place.epoch
    seen: list[Any] = []
    for epoch in range(first, 3):
        for one in (loader.sampler, loader.batch_sampler):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        for indices, values in loader:
            seen.append((epoch, indices, values, torch.rand(()).item()))
            tracker.step()
            if len(seen) - (epoch - first) == stop:
                return seen, (tracker.place(), random_state.take())
        seen.append((epoch, random.random()))
    return seen, None


def equal(first: list[Any], second: list[Any]) -> bool:
    return repr(first) == repr(second)


MADE = [shuffled, of_a_rank, own_generator, in_batches, by_length, by_length_and_epoch, listed, weighted, a_part]


@pytest.mark.parametrize("made", MADE)
def test_goes_on_with_the_same_samples_and_numbers(made: Made) -> None:
    whole, _ = train(made)
    for stop in (1, 4, 5, 6, 10, 12):
        before, saved = train(made, stop=stop)
        after, _ = train(made, saved=saved)
        assert equal(before + after, whole)


@pytest.mark.parametrize(("made", "persistent"), [(own_generator, False), (own_generator, True), (by_length, False)])
def test_what_workers_have_fetched_ahead_does_not_count(made: Made, persistent: bool) -> None:
    options = {"num_workers": 2, "persistent_workers": persistent}
    whole, _ = train(made, **options)
    for stop in (3, 8, 12):
        before, saved = train(made, stop=stop, **options)
        after, _ = train(made, saved=saved, **options)
        assert equal(before + after, whole)


def test_a_sample_is_augmented_alike_by_any_number_of_workers() -> None:
    one, _ = train(shuffled, num_workers=1)
    two, _ = train(shuffled, num_workers=2)
    assert equal(one, two)


def test_later_epochs_are_augmented_alike_wherever_the_first_one_went_on() -> None:
    def loader_of(seed: int) -> DataLoader[Any]:
        torch.manual_seed(seed)
        return DataLoader(Augmented(), batch_size=4, num_workers=1)

    loader = loader_of(1)
    tracker = track(loader)
    for _ in loader:
        tracker.step()
    place, whole = tracker.place(), list(loader)
    # As on another number of ranks, where the loader's own numbers are not repeated.
    again = loader_of(2)
    tracker = track(again)
    tracker.resume(msgspec.structs.replace(place, epoch=0, samples=8, begin=None))
    for _ in again:
        tracker.step()
    assert equal(list(again), whole)


def test_samples_since_the_last_step_come_again() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=4)
    tracker = track(loader)
    batches = iter(loader)
    next(batches)
    tracker.step()
    next(batches)
    assert tracker.place().samples == 4


def test_a_pass_without_a_step_is_no_epoch() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=4)
    tracker = track(loader)
    next(iter(loader))
    assert len(list(loader)) == 10
    tracker.resume(Place(1, 8, 1, SAMPLES))
    next(iter(loader))
    for _ in loader:
        tracker.step()
        break
    assert tracker.place() == Place(epoch=2, samples=0, ranks=1, length=SAMPLES)
    # Of another training.
    assert track(loader).place().epoch == 0


def test_equal_samples_of_an_epoch_are_augmented_apart() -> None:
    dataset = Augmented()
    loader = DataLoader(dataset, sampler=[3, 3, 3], batch_size=3, num_workers=1)
    track(loader)
    [(_, values)] = list(loader)
    assert len(set(values.tolist())) == 3


def test_a_batch_that_cannot_be_read_is_passed_over_again() -> None:
    class Broken(Augmented):
        def __getitem__(self, index: int) -> tuple[int, float]:
            if index == 4:
                raise OSError("damaged")
            return super().__getitem__(index)

    loader: DataLoader[Any] = DataLoader(Broken(), batch_size=4)
    tracker = track(loader)
    batches = iter(loader)
    next(batches)
    with pytest.raises(OSError, match="damaged"):
        next(batches)
    next(batches)
    tracker.step()
    assert tracker.place().samples == 12


def test_workers_that_stay_draw_as_if_nothing_had_happened() -> None:
    options = {"num_workers": 2, "persistent_workers": True}

    def epochs(saved: Any) -> Any:
        torch.manual_seed(3)
        loader: DataLoader[Any] = DataLoader(Augmented(), shuffle=True, batch_size=4, **options)
        tracker = track(loader)
        seen: list[Any] = []
        if saved is not None:
            tracker.resume(saved[0])
            random_state.restore(saved[1])
        for _ in range(1 if saved is not None else 2):
            between = tracker.place(), random_state.take()
            for batch in loader:
                seen.append(batch)
                tracker.step()
        return seen, between

    whole, between = epochs(None)
    again, _ = epochs(between)
    assert equal(whole[-len(again) :], again)


def test_an_epoch_that_the_loop_leaves_is_over() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=4)
    tracker = track(loader)
    for _ in loader:
        tracker.step()
        break
    assert tracker.place() == Place(epoch=1, samples=0, ranks=1, length=SAMPLES)


def test_a_loader_that_is_begun_again_forgets_its_first_iterator() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(), batch_size=4)
    tracker = track(loader)
    first, second = iter(loader), iter(loader)
    next(second)
    tracker.step()
    assert (tracker.place().epoch, tracker.place().samples) == (1, 4)
    next(first)
    with pytest.raises(ParallelError, match="read in several passes at a time"):
        tracker.place()


def test_nothing_of_the_past_is_read() -> None:
    read = []

    class Recorded(Augmented):
        def __getitem__(self, index: int) -> tuple[int, float]:
            read.append(index)
            return super().__getitem__(index)

    loader: DataLoader[Any] = DataLoader(Recorded(), batch_size=4)
    track(loader).resume(Place(0, 20, 1, SAMPLES))
    batches = iter(loader)
    next(batches)
    assert read == [20, 21, 22, 23]


@given(
    length=st.integers(1, 60),
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=4),
    last=st.integers(1, 6),
)
def test_each_sample_comes_once_on_changing_numbers_of_ranks(
    length: int, steps: list[tuple[int, int]], last: int
) -> None:
    order = list(range(length))
    random.Random(length).shuffle(order)
    used, seen = 0, []
    for ranks, each in steps:
        parts = [share(order, used, ranks, rank, drop_last=False)[:each] for rank in range(ranks)]
        seen += [sample for part in parts for sample in part]
        used = min(length, used + len(parts[0]) * ranks)
    parts = [share(order, used, last, rank, drop_last=False) for rank in range(last)]
    seen += [sample for part in parts for sample in part]
    assert set(seen) == set(order)
    assert len({len(part) for part in parts}) == 1
    # Only the last round of an epoch repeats samples, less than one for each rank.
    assert len(seen) - length < max([last, *(ranks for ranks, _ in steps)])


def test_as_torch_divides_a_fresh_epoch() -> None:
    for length in range(1, 20):
        for ranks in range(1, 7):
            for drop_last in (False, True):
                for rank in range(ranks):
                    dataset: Any = range(length)
                    theirs = DistributedSampler(dataset, ranks, rank, shuffle=False, drop_last=drop_last)
                    if ranks <= length:
                        assert share(range(length), 0, ranks, rank, drop_last) == list(theirs)


class ByAnotherRule(DistributedSampler[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank * self.num_samples, (self.rank + 1) * self.num_samples))


class DrawsBetween(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return (random.randrange(SAMPLES) for _ in range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


class OwnGenerator(DrawsBetween):
    def __init__(self) -> None:
        self.numbers = random.Random(7)


class CountsItsEpochs(DrawsBetween):
    epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from range(self.epoch, SAMPLES)


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from super().__iter__()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_what_cannot_be_repeated_is_refused_by_name() -> None:
    with pytest.raises(ParallelError, match="IterableDataset"):
        track(DataLoader(Stream()))
    dataset = Augmented()
    for sampler, words in (
        (DrawsBetween(), "DrawsBetween draws random numbers"),
        (CountsItsEpochs(), "CountsItsEpochs changes its own attributes"),
    ):
        loader: DataLoader[Any] = DataLoader(dataset, sampler=sampler, batch_size=2)
        tracker = track(loader)
        batches = iter(loader)
        next(batches)
        tracker.step()
        with pytest.raises(ParallelError, match=words):
            tracker.place()
    for wrong, words in (
        (DataLoader(dataset, sampler=OwnGenerator()), "OwnGenerator draws from a Random of its own"),
        (DataLoader(dataset, sampler=iter([1])), "has no __len__"),
        (DataLoader(dataset, batch_sampler=iter([[1], [2]])), "list_iterator can be read once only"),
        (OwnLoader(dataset), "OwnLoader has an __iter__"),
        (DataLoader(dataset, batch_size=None, num_workers=1), "without a batch_size"),
    ):
        with pytest.raises(ParallelError, match=words):
            track(wrong)
    of_ranks = DataLoader(dataset, batch_sampler=[[1], [2]])
    with pytest.raises(ParallelError, match="the batches of list were made for 2 ranks"):
        track(of_ranks).resume(Place(0, 1, 2, SAMPLES))
    track(of_ranks).resume(Place(1, 0, 2, SAMPLES))
    loader = DataLoader(dataset, sampler=ByAnotherRule(dataset, 2, 0), batch_size=2)
    track(loader).resume(Place(0, 4, 2, SAMPLES))
    with pytest.raises(ParallelError, match="ByAnotherRule divides"):
        next(iter(loader))
    with pytest.raises(ParallelError, match="other data: 40 samples"):
        track(DataLoader(dataset)).resume(Place(0, 4, 1, 40))
    two = DataLoader(dataset, sampler=DistributedSampler(dataset, 2, 0))
    track(two).resume(Place(0, 4, 3, SAMPLES))
    with pytest.raises(ParallelError, match="shared by 2 ranks"):
        track(DataLoader(dataset)).resume(Place(0, 4, 2, SAMPLES))
