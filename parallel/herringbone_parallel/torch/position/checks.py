"""The conditions under which the order of a loader can be repeated."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from herringbone_contract.errors import ParallelError

# Python's and NumPy's, among the attributes of a sampler.
_GENERATORS = ("Random", "Generator", "RandomState")


def plain(sampler: Any) -> dict[str, Any]:
    """Return the numbers and texts of an object."""
    return {
        name: value for name, value in getattr(sampler, "__dict__", {}).items() if isinstance(value, (int, float, str))
    }


def check(loader: DataLoader[Any]) -> None:
    """Raise `ParallelError` for a loader whose order nobody can repeat."""
    own: Any = loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.sampler
    name = type(own).__name__
    if isinstance(loader.dataset, IterableDataset):
        raise ParallelError("an IterableDataset has no order of samples to go on in: give a dataset with indices")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ParallelError(f"{type(loader).__name__} has an __iter__ of its own, which nobody can enter in its middle")
    if not getattr(loader, "in_order", True):
        raise ParallelError("in_order=False gives batches in the order in which they arrive, which nobody can repeat")
    if loader.num_workers and loader.batch_sampler is None:
        raise ParallelError("with workers, and without a batch_size, samples have no place: give the DataLoader one")
    if not hasattr(own, "__len__"):
        raise ParallelError(f"the sampler {name} has no __len__, so nobody knows where its epoch ends")
    drawn = [
        one
        for one in getattr(own, "__dict__", {}).values()
        if type(one).__name__ in _GENERATORS and not isinstance(one, torch.Generator)
    ]
    if drawn:
        raise ParallelError(
            f"the sampler {name} draws from a {type(drawn[0]).__name__} of its own, whose state no checkpoint has: let"
            " it make one from a seed and the epoch at each begin, or draw from a torch.Generator"
        )
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise ParallelError(
            f"the batch_sampler {type(loader.batch_sampler).__name__} makes batches of its own: give the DataLoader a"
            " sampler and a batch_size"
        )
