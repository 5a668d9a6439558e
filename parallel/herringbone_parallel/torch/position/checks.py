"""The conditions under which the order of a loader can be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from herringbone_contract.constants import RankVariable
from herringbone_contract.errors import ParallelError

OPTION = "keep_global_batch"
# Python's and NumPy's, among the attributes of a sampler.
_GENERATORS = ("Random", "Generator", "RandomState")


def plain(sampler: Any) -> dict[str, Any]:
    """Return the numbers and texts of an object."""
    return {
        name: value for name, value in getattr(sampler, "__dict__", {}).items() if isinstance(value, (int, float, str))
    }


def check(loader: DataLoader[Any]) -> None:
    """Raise `ParallelError` for a loader whose order nobody can repeat."""
    if not is_torchs(loader, DataLoader) and type(loader).__iter__ is not DataLoader.__iter__:
        raise ParallelError(f"{type(loader).__name__} has an __iter__ of its own, which nobody can enter in its middle")
    if not getattr(loader, "in_order", True):
        raise ParallelError("in_order=False gives batches in the order in which they arrive, which nobody can repeat")
    if isinstance(loader.dataset, IterableDataset):
        _check_stream(loader)
        return
    if loader.num_workers and loader.batch_sampler is None:
        raise ParallelError("with workers, and without a batch_size, samples have no place: give the DataLoader one")
    batches: Any = loader.batch_sampler
    own: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    if batches is not None and not is_torchs(batches, BatchSampler):
        _check_sampler(batches)
    elif not hasattr(own, "__len__"):
        raise ParallelError(f"the sampler {type(own).__name__} has no __len__, so nobody knows where its epoch ends")
    _check_sampler(own)
    _check_dataset(loader.dataset)


def is_torchs(part: Any, kind: type) -> bool:
    """Say whether an object is of a class of torch's, or of torchdata's that does the same."""
    return type(part) is kind or (isinstance(part, kind) and type(part).__module__.startswith("torchdata."))


def _check_dataset(dataset: Any) -> None:
    # A subset leads to the dataset that it is of.
    while hasattr(dataset, "__dict__"):
        if drawn := [one for one in vars(dataset).values() if type(one).__name__ in _GENERATORS]:
            raise ParallelError(
                f"the dataset {type(dataset).__name__} draws from a {type(drawn[0]).__name__} of its own, which begins"
                " anew after a restart: let it draw from the global numbers of random, NumPy or torch, or make one from"
                " a seed and the index of each sample"
            )
        dataset = vars(dataset).get("dataset")


def _check_sampler(sampler: Any) -> None:
    drawn = [
        one
        for one in getattr(sampler, "__dict__", {}).values()
        if type(one).__name__ in _GENERATORS and not isinstance(one, torch.Generator)
    ]
    if drawn:
        raise ParallelError(
            f"the sampler {type(sampler).__name__} draws from a {type(drawn[0]).__name__} of its own, whose state no"
            " checkpoint has: let it make one from a seed and the epoch at each begin, or draw from a torch.Generator"
        )
    if isinstance(sampler, Iterator):
        raise ParallelError(f"the sampler {type(sampler).__name__} can be read once only: give the DataLoader a list")


def _check_stream(loader: DataLoader[Any]) -> None:
    dataset: Any = loader.dataset
    name = type(dataset).__name__
    if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
        raise ParallelError(
            f"the IterableDataset {name} has no state_dict and load_state_dict, so nobody knows its place: give it"
            " both, or read whole files with herringbone_parallel.torch.position.api.Shards"
        )
    if loader.persistent_workers:
        raise ParallelError(
            f"persistent_workers=True keeps copies of {name}, which no state of a later epoch reaches: leave it out"
        )
    source: Any = getattr(dataset, "_ex_iterable", None)
    while source is not None:
        if type(source).__name__ == "BufferShuffledExamplesIterable":
            raise ParallelError(
                f"{name}.shuffle forgets the samples of its buffer at a restart: shuffle before you write the files,"
                " take the dataset with streaming=False, or read whole files with"
                " herringbone_parallel.torch.position.api.Shards"
            )
        source = getattr(source, "ex_iterable", None)


def full_ranks() -> int:
    """Return the number of ranks for which the script gives its batch size; 0 where the global batch may change."""
    hosts = int(os.environ.get(RankVariable.FULL_HOSTS, "0"))
    return hosts * int(os.environ.get(RankVariable.LOCAL_WORLD_SIZE, "1"))


def refuse(what: str) -> None:
    """Raise `ParallelError` where the global batch is to be kept, and `what` would not keep it."""
    if full_ranks():
        raise ParallelError(f"{OPTION}: {what} does not keep the global batch; leave the option out")
