"""Serve torch.distributed with one process: a fake process group of N ranks, of which this is rank 0.

torch's own fake backend leaves every tensor as it is, which is right for a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from herringbone_parallel.torch.measure.replacing import replaced

_BACKEND = "fake"


@contextmanager
def alone(ranks: int) -> Iterator[None]:
    """Let scripts call torch.distributed in the `with` block as rank 0 of `ranks`."""
    if not dist.is_available():
        yield
        return
    # Registers the backend.
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    served = _Served(ranks)
    functions = {
        "init_process_group": served.init_process_group,
        "new_group": served.new_group,
        "get_backend": served.get_backend,
        "all_gather_object": served.all_gather_object,
        "gather_object": served.gather_object,
        "broadcast_object_list": served.broadcast_object_list,
        "scatter_object_list": served.scatter_object_list,
        "monitored_barrier": served.barrier,
        "barrier": served.barrier,
        "all_gather": served.all_gather,
        "TCPStore": served.store,
    }
    with ExitStack() as stack:
        for module in (dist, distributed_c10d):
            present = {name: function for name, function in functions.items() if hasattr(module, name)}
            stack.enter_context(replaced(module, **present))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


class _Served:
    """The functions of torch.distributed that need more than the fake backend does."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._name = "gloo"
        self._init, self._new = dist.init_process_group, dist.new_group

    def init_process_group(self, backend: str | None = None, *_args: Any, **_kwargs: Any) -> None:
        """Make the default group; the script's own rendezvous is not used."""
        self._name = (backend or "gloo").rpartition(":")[2]
        self._init(_BACKEND, store=HashStore(), rank=0, world_size=self._ranks)

    def store(self, *_args: Any, **_kwargs: Any) -> HashStore:
        """Make a store of this process alone."""
        return HashStore()

    def new_group(self, ranks: Any = None, *_args: Any, **kwargs: Any) -> Any:
        """Make a group of the default group's ranks."""
        return self._new(ranks, backend=_BACKEND, group_desc=kwargs.get("group_desc"))

    def get_backend(self, _group: Any = None) -> str:
        """Return the backend that the script asked for."""
        return self._name

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:  # noqa: ARG002  torch's
        """Give every rank this rank's object."""
        object_list[:] = [obj] * len(object_list)

    def gather_object(self, obj: Any, object_gather_list: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Give every rank this rank's object."""
        if object_gather_list:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(self, *_args: Any, **_kwargs: Any) -> None:
        """Leave the objects of this rank, which is the source."""

    def scatter_object_list(self, output: list[Any], source: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Take this rank's object."""
        if source:
            output[0] = source[0]

    def barrier(self, *_args: Any, **_kwargs: Any) -> Any:
        """Wait for nobody."""
        return _Done()

    def all_gather(self, tensor_list: list[Any], tensor: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Give every rank this rank's tensor."""
        for entry in tensor_list:
            entry.copy_(tensor)
        return _Done()


class _Done:
    """A finished `Work`."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Say yes."""
        return True
