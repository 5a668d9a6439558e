"""Measure the time for which a save in the background stops training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import checkpoint, in_turn, measured, medians, ratio, sharded, state_of
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from herringbone_parallel.torch.checkpoint.pieces import pieces_by_name
from herringbone_parallel.torch.checkpoint.states import flatten


def stall(folder: str, width: int, layers: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of five ways, in turn.

    - `blocking`: our save, until the checkpoint is on the disk
    - `ours`: our save in the background, until the call returns
    - `copy`: this rank's tensors, copied into memory that is in use already: no save that keeps its own copy is faster
    - `torch`: `torch.distributed.checkpoint.async_save`
    - `torch_kept`: the same with one `DefaultStager` for all saves, which uses its memory again
    """
    model, optimizer = sharded(width, layers)
    state = state_of(model, optimizer)
    sources = [piece.tensor for _, piece in pieces_by_name(flatten(state).tensors)]
    targets = [torch.ones_like(source) for source in sources]
    # torch's pinned memory and its copies that do not block need a CUDA device.
    stager = DefaultStager(StagingOptions(False, False, False, False))
    group = dist.new_group(backend="gloo")
    pending: list[Any] = []

    def copy() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    def ours() -> None:
        pending.append(checkpoint.async_save(folder, "background", state))

    def by_torch(name: str, **options: Any) -> Callable[[], None]:
        path = Path(folder, name)

        def begin() -> None:
            pending.append(dcp.async_save(state, checkpoint_id=path, process_group=group, **options))

        return begin

    def written() -> None:
        while pending:
            pending.pop().result()
        dist.barrier()
        if dist.get_rank() == 0:
            for name in ("torch", "torch_kept"):
                shutil.rmtree(Path(folder, name), ignore_errors=True)

    ways = {
        "blocking": lambda: checkpoint.save(folder, "blocking", state),
        "ours": ours,
        "copy": copy,
        "torch": by_torch("torch"),
        "torch_kept": by_torch("torch_kept", async_stager=stager),
    }
    # The first saves allocate the memory of the copies, and make groups.
    first = {}
    for name, call in ways.items():
        first[name] = round(measured(call).seconds, 4)
        written()
    taken = in_turn(ways, rounds, written)
    stager.close()
    count = checkpoint.Reader(Path(folder, "background")).manifest.bytes
    times = medians(taken)
    return {
        "bytes": count,
        "disk_gb_s": round(count / times["blocking"]["seconds"] / 1e9, 3),
        **times,
        "first": first,
        "over_blocking": {name: ratio(taken, name, "blocking")["seconds"] for name in ways if name != "blocking"},
        "ours_over_copy": ratio(taken, "ours", "copy")["seconds"],
    }
