"""The ranks of a data-parallel job in MXNet, or a single process: implements `common.loop.Framework`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import gluon


@dataclass(frozen=True)
class World:
    """This rank's number, the number of ranks, and this rank's device."""

    rank: int
    ranks: int
    device: mx.Context

    @property
    def is_launched(self) -> bool:
        """True for a rank of a job, also for a job's only rank. False for a process without a launcher."""
        return bool(hvd.is_initialized())

    def total(self, *values: Any) -> list[float]:
        """Return the sum of each value over the ranks."""
        totals = [float(value) for value in values]
        if not self.is_launched:
            return totals
        return hvd.allreduce(mx.nd.array(totals, dtype="float64"), op=hvd.Sum).asnumpy().tolist()

    def gather(self, text: str) -> list[str]:
        """Return all ranks' lines of text, on every rank."""
        return hvd.allgather_object(text) if self.is_launched else [text]

    def require_fp32(self, precision: str) -> None:
        """Raise `ValueError` for `--precision` in 16 bits, which the examples do not have on MXNet."""
        if precision != "fp32":
            raise ValueError(f"--precision {precision}: on MXNet the examples compute in fp32; leave --precision out")


def join() -> World:
    """Join the other ranks, if a launcher started this process. Each rank uses one GPU, if the host has GPUs."""
    if "RANK" not in os.environ:
        return World(0, 1, mx.cpu())
    hvd.init()
    device = mx.gpu(hvd.local_rank()) if mx.context.num_gpus() else mx.cpu()
    return World(hvd.rank(), hvd.size(), device)


def leave() -> None:
    """End the communication with the other ranks."""
    # MXNet computes in background threads, which a rank must not leave behind.
    mx.nd.waitall()
    if hvd.is_initialized():
        hvd.shutdown()


def save(model: gluon.Block, folder: Path) -> None:
    """Write the weights to `model.params`, which `model.load_parameters` reads."""
    model.save_parameters(str(folder / "model.params"))
