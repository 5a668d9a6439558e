"""`smddp`, a backend of torch.distributed whose sums travel through the engine; for all else it has gloo, or NCCL."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ProcessGroup, ProcessGroupGloo, Store

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce import session
from herringbone_parallel.reduce.engine import Engine
from herringbone_parallel.reduce.lanes import join_lane
from herringbone_parallel.torch.data_parallel.device import Cuda
from herringbone_parallel.torch.data_parallel.inside import Inside
from herringbone_parallel.torch.data_parallel.staging import Stager
from herringbone_parallel.torch.data_parallel.work import KEEPS_WORKS, WatchedWork, sum_work

NAME = "smddp"
_SUMMED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_PLAIN = AllreduceOptions()
_OPERATIONS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "average"}


class ReduceGroup(ProcessGroup):
    """A process group. With `engine`, sums and averages of dense floating-point tensors are the engine's.

    Everything else goes to a group of torch's own for the tensors' device: other collectives, other operations and
    types, sparse tensors, and all of a group that is a part of the job.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, engine: Engine | None) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs have one of its two forms
        self.engine = engine
        self._stager: Stager | None = None
        self._abandoned = False
        # The last ones, for a torch that does not keep them: it has two under way at most.
        self._recent: deque[Any] = deque(maxlen=8)
        gloo = ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, timeout=timeout)
        self._torchs: dict[str, Any] = {"cpu": gloo}
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        usual = ProcessGroup.BackendType.GLOO
        if torch.cuda.is_available():
            # Not run yet: there is no CUDA device where this was written.
            self._torchs["cuda"] = nccl = _nccl(PrefixStore("nccl/", store), rank, size, timeout)
            self._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
            self._stager = _stager(store, timeout, engine)
            usual = ProcessGroup.BackendType.NCCL
        self._set_default_backend(usual)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return NAME

    def allreduce(self, tensors: Any, opts: Any = _PLAIN) -> Any:  # type: ignore[override]  # one of its three forms
        """Start an all-reduce: `all_reduce`, and what DistributedDataParallel calls for each bucket."""
        tensor = tensors[0]
        operation = next((name for op, name in _OPERATIONS.items() if opts.reduceOp == op), None)
        if self.engine is None or len(tensors) > 1 or operation is None or not _is_dense_float(tensor):
            return self._held(self._delegated("allreduce", tensors, opts))
        if self._stager is not None and tensor.is_cuda:
            return self._stager.start(tensor, operation)
        if self._stager is not None or tensor.is_cuda:
            # The stager's thread submits later than this one would: sums of both would have no order. Without one, all
            # devices are on this host, and nothing is to cross a network.
            return self._held(self._delegated("allreduce", tensors, opts))
        return start(self.engine, tensor, operation)

    def _held(self, work: Any) -> Any:
        if not KEEPS_WORKS:
            self._recent.append(work)
        return work

    def _delegated(self, name: str, *arguments: Any) -> Any:
        """Start a collective of torch's own, and have an eye on the ranks while it is waited for."""
        device = _device(arguments)
        work = getattr(self._torchs[device], name)(*arguments)
        return work if self.engine is None or device != "cpu" else WatchedWork(work, self.engine, self._abandon)

    def _abandon(self) -> None:
        """Never destroy gloo's group: its destructor waits for what is under way, half an hour with a stopped rank."""
        if not self._abandoned:
            self._abandoned = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._torchs["cpu"]))

    def shutdown(self) -> None:
        """Leave the other ranks; torch < 2.6 does not call it, and the engine is closed when the script ends."""
        if self._stager is not None:
            self._stager.close()
        engine, self.engine = self.engine, None
        if engine is not None:
            session.leave()
        for group in self._torchs.values():
            if hasattr(group, "shutdown") and not self._abandoned:
                group.shutdown()


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: ReduceGroup, *arguments: Any, **options: Any) -> Any:
        return self._held(self._delegated(name, *arguments, *options.values()))

    return method


# What torch calls by these names; a group passes the rest on by itself, unwatched.
for _name in ("allgather", "alltoall", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"):
    setattr(ReduceGroup, _name, _passed_on(_name))


def start(engine: Engine, tensor: torch.Tensor, operation: str) -> Any:
    """Start the engine's sum of a tensor in the memory of the host, in place."""
    tensor = tensor.detach()
    dense = tensor.contiguous()
    handle = engine.all_reduce(dense.data_ptr(), dense.numel(), str(dense.dtype).removeprefix("torch."), op=operation)
    # One that is not contiguous was copied.
    return sum_work(handle, tensor, None if dense is tensor else lambda: tensor.copy_(dense))


def register() -> None:
    """Make `init_process_group("smddp")` possible; a second call does nothing."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> ReduceGroup:
    """Make the job's group, which has the engine, or one of `new_group`, which has not: sums keep one order."""
    if dist.is_initialized():
        return ReduceGroup(store, rank, size, timeout, None)
    engine = session.enter()
    if (engine.rank, engine.size) != (rank, size):
        session.leave()
        raise ParallelError(
            f"init_process_group(rank={rank}, world_size={size}), but the job's launcher made this process rank"
            f" {engine.rank} of {engine.size}: leave both out, they come from the environment"
        )
    try:
        return ReduceGroup(store, rank, size, timeout, engine)
    except BaseException:
        session.leave()
        raise


def _stager(store: Store, timeout: timedelta, engine: Engine | None) -> Stager | None:
    """Return what takes tensors of CUDA devices through the engine; None on a lone host, whose sums are NCCL's.

    Where all hosts have as many ranks, several, each host's sum is NCCL's and crosses the network once, cut in a slice
    for each rank. Elsewhere each rank's whole buckets come to the host's memory, where the engine sums them.
    """
    if engine is None or engine.topology.hosts == 1:
        return None
    if len(set(map(len, engine.topology.ranks))) > 1 or engine.local_size == 1:
        return Stager(engine, Cuda())
    host, rank, size = engine.topology.host(engine.rank), engine.local_rank, engine.local_size
    scatters, gathers = (
        _nccl(PrefixStore(f"inside/{host}/{name}/", store), rank, size, timeout) for name in ("scatters", "gathers")
    )
    lane = join_lane(engine, store.set, lambda key: str(store.get(key).decode()))
    return Stager(engine, Cuda(), Inside(scatters, gathers, size), lane)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    # Imported here: a torch without CUDA has no such name.
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def _device(arguments: Any) -> str:
    """Return the type of device of the first tensor in nested lists; without one, where the gradients are. Pure."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device.type
        if isinstance(argument, (list, tuple)) and argument:
            return _device(argument)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _is_dense_float(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dtype in _SUMMED
