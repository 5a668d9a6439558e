"""Asks nvidia-smi for this machine's GPUs and for the processes that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from herringbone.system.nvidia_smi import ask


class Probe(Protocol):
    """The two questions about GPUs; a test answers them without a driver."""

    def listing(self) -> str:
        """Return the output of `nvidia-smi -L`; empty without a driver."""

    def processes(self) -> str:
        """Return a line `UUID, pid, MiB` for each process that computes on a GPU; empty without a driver."""


class NvidiaSmi:
    """Asks the program `nvidia-smi` on PATH; it is asked for the GPUs once."""

    def __init__(self) -> None:
        self._listing = ""

    def listing(self) -> str:
        # Without an answer, the driver may be busy: it is asked again.
        self._listing = self._listing or ask("-L") or ""
        return self._listing

    def processes(self) -> str:
        return ask("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits") or ""


class ListedGpus(NvidiaSmi):
    """GPUs that `listing` lists in the form of `nvidia-smi -L`, as on a machine that another program asks."""

    def __init__(self, listing: Callable[[], str]) -> None:
        super().__init__()
        self._list = listing

    def listing(self) -> str:
        return self._list()
