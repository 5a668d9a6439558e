"""Facts about this machine that a prediction needs: its GPUs, its memory and its cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from herringbone.system.nvidia_smi import gpus
from herringbone_contract.prediction.devices import Device, device_named
from herringbone_contract.resources import num_gpus

_QUERY_SECONDS = 5.0
# Two multiply-adds of 8 numbers in each cycle of 3 GHz, and a memory channel's share. Times of a CPU come from its own
# timings; these rates only rank layouts where no timing is at hand.
_CORE_OPERATIONS, _CORE_BYTES = 96e9, 10e9


class Machine(NamedTuple):
    """One machine: bytes of memory, cores, the devices of its GPUs that jobs may use, and threads that want to run."""

    memory_bytes: int
    cores: int
    gpus: tuple[Device, ...] = ()
    load: float = 0.0


def this_machine() -> Machine:
    """Return the facts of this machine. Raises `UsageError` for a GPU that no table knows."""
    return Machine(
        _memory_bytes(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        _gpus(),
        # Of the last minute.
        os.getloadavg()[0],
    )


def cpu_device(machine: Machine, share: int = 1) -> Device:
    """Return the processor of a machine without GPUs, or of one of `share` hosts on it, as one device.

    >>> cpu_device(Machine(memory_bytes=8 << 30, cores=4), 2).memory_bytes >> 30
    4
    """
    cores = max(1.0, machine.cores / share)
    return Device(
        name="cpu",
        memory_bytes=max(1, machine.memory_bytes // share),
        operations_per_second={"float32": _CORE_OPERATIONS * cores},
        bytes_per_second=_CORE_BYTES * cores,
    )


def _gpus() -> tuple[Device, ...]:
    count = num_gpus(os.environ)
    if not count:
        return ()
    # CUDA_VISIBLE_DEVICES may hide some; ranks of one host have equal ones.
    return tuple(device_named(name) for name, _ in gpus(seconds=_QUERY_SECONDS)[:count])


def _memory_bytes() -> int:
    """Return the memory that processes here may use: the machine's, or the limit of this container."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            amounts.append(int(Path(path).read_text(encoding="ascii")))
        # "max" is no number: no limit.
        except (OSError, ValueError):
            continue
    return min(amounts)
