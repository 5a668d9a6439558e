"""The backend `smddp` of torch.distributed: the engine does its sums; gloo or NCCL does everything else."""

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
from herringbone_parallel.reduce.subsets import join_lane
from herringbone_parallel.torch.data_parallel.device import Cuda
from herringbone_parallel.torch.data_parallel.intra_host import IntraHost
from herringbone_parallel.torch.data_parallel.staging import Stager
from herringbone_parallel.torch.data_parallel.uncompiled import uncompiled
from herringbone_parallel.torch.data_parallel.work import KEEPS_WORKS, WatchedWork, sum_work

NAME = "smddp"
_SUMMED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_PLAIN = AllreduceOptions()
_OPERATIONS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "average"}


class ReduceGroup(ProcessGroup):
    """A process group that sums and averages dense floating-point tensors with `engine`, if it has one.

    Groups of torch's own, one per kind of device, do everything else: other collectives, operations and types, sparse
    tensors, and all collectives of a group that covers a part of the job.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, engine: Engine | None) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs have one of its two forms
        self.engine = engine
        self._stager: Stager | None = None
        self._abandoned = False
        # The most recent works, for a torch that does not keep them; it has at most two in progress.
        self._recent: deque[Any] = deque(maxlen=8)
        # A prefix for each group, so that their keys in the store never collide.
        gloo = ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, timeout=timeout)
        self._groups: dict[str, Any] = {"cpu": gloo}
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        default = ProcessGroup.BackendType.GLOO
        if torch.cuda.is_available():
            # Never run: no CUDA device was available.
            self._groups["cuda"] = nccl = _nccl(PrefixStore("nccl/", store), rank, size, timeout)
            self._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
            self._stager = _stager(store, timeout, engine)
            default = ProcessGroup.BackendType.NCCL
        self._set_default_backend(default)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Return the name that `dist.get_backend` shows."""
        return NAME

    @uncompiled
    def allreduce(self, tensors: Any, opts: Any = _PLAIN) -> Any:
        """Start an all-reduce; `dist.all_reduce` calls it, and DistributedDataParallel for each bucket."""
        # `model.join` gives one tensor without a list.
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        tensor = tensors[0]
        operation = next((name for op, name in _OPERATIONS.items() if opts.reduceOp == op), None)
        if self.engine is None or len(tensors) > 1 or operation is None or not _is_dense_float(tensor):
            return self._remember(self._delegate("allreduce", tensors, opts))
        if self._stager is not None and tensor.is_cuda:
            return self._stager.start(tensor, operation)
        if self._stager is not None or tensor.is_cuda:
            # With a stager: its thread submits later than this thread would, so sums of both would be in a different
            # order on each rank. Without a stager: all devices are on this host, and no sum crosses a network.
            return self._remember(self._delegate("allreduce", tensors, opts))
        return start(self.engine, tensor, operation)

    def _remember(self, work: Any) -> Any:
        """Keep a reference to the work if torch does not; see `KEEPS_WORKS`."""
        if not KEEPS_WORKS:
            self._recent.append(work)
        return work

    def _delegate(self, name: str, *arguments: Any) -> Any:
        """Start a collective of torch's own group; waiting for it also watches for lost ranks."""
        device = _device(arguments)
        work = getattr(self._groups[device], name)(*arguments)
        return work if self.engine is None or device != "cpu" else WatchedWork(work, self.engine, self._abandon)

    def _abandon(self) -> None:
        """Never destroy gloo's group: its destructor waits for running collectives, up to half an hour."""
        if not self._abandoned:
            self._abandoned = True
            # A reference that nobody drops keeps the destructor from running, even when the interpreter exits.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._groups["cpu"]))

    def shutdown(self) -> None:
        """Leave the other ranks."""
        if self._stager is not None:
            # First, because the stager's threads use the engine.
            self._stager.close()
        engine, self.engine = self.engine, None
        if engine is not None:
            session.leave()
        for group in self._groups.values():
            if hasattr(group, "shutdown") and not self._abandoned:
                group.shutdown()


def _delegating(name: str) -> Callable[..., Any]:
    """Return a method that passes the collective `name` to torch's own group."""

    @uncompiled
    def method(self: ReduceGroup, *arguments: Any, **options: Any) -> Any:
        return self._remember(self._delegate(name, *arguments, *options.values()))

    return method


# torch's C++ code calls these methods. The base class passes all other collectives on by itself, unwatched.
for _name in ("allgather", "alltoall", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"):
    setattr(ReduceGroup, _name, _delegating(_name))


def start(engine: Engine, tensor: torch.Tensor, operation: str) -> Any:
    """Start the engine's sum of a tensor in the host's memory, in place."""
    tensor = tensor.detach()
    dense = tensor.contiguous()
    handle = engine.all_reduce(dense.data_ptr(), dense.numel(), str(dense.dtype).removeprefix("torch."), op=operation)
    # `contiguous` has copied a tensor with gaps, so its sum has to be copied back.
    return sum_work(handle, tensor, None if dense is tensor else lambda: tensor.copy_(dense))


def register() -> None:
    """Make `init_process_group("smddp")` possible; a second call does nothing."""
    # torch refuses to register a name twice.
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> ReduceGroup:
    """Make the job's group, with the engine, or a group of `new_group`, without it.

    The engine sums buffers in one order on all ranks, and groups of some ranks would break that order.
    """
    # torch creates the job's group first; all later calls come from `new_group`.
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
    """Return the stager for tensors of CUDA devices; None on a lone host, where NCCL sums.

    If all hosts have the same number of ranks, and more than one, NCCL sums inside each host, and the host's sum
    crosses the network once, in one slice per rank. Otherwise each rank's whole bucket is copied to the host's memory,
    where the engine sums it.
    """
    if engine is None or engine.topology.hosts == 1:
        return None
    if len(set(map(len, engine.topology.ranks))) > 1 or engine.local_size == 1:
        return Stager(engine, Cuda())
    host, rank, size = engine.topology.host(engine.rank), engine.local_rank, engine.local_size
    # The host's number keeps the groups of different hosts apart in the job's store.
    scatters, gathers = (
        _nccl(PrefixStore(f"inside/{host}/{name}/", store), rank, size, timeout) for name in ("scatters", "gathers")
    )
    lane = join_lane(engine, store.set, lambda key: str(store.get(key).decode()))
    return Stager(engine, Cuda(), IntraHost(scatters, gathers, size), lane)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    # Imported here, because a torch without CUDA does not have this class.
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, size, options)


def _device(arguments: Any) -> str:
    """Return the device type of the first tensor in nested lists; without a tensor, that of the gradients."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device.type
        if isinstance(argument, (list, tuple)) and argument:
            return _device(argument)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _is_dense_float(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dtype in _SUMMED
