"""`smp.save`: one file per rank of the pipeline, or one for all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from herringbone_parallel.torch import state


def save(
    obj: Any, f: str | os.PathLike[str], partial: bool = True, pickle_module: Any = None, pickle_protocol: int = 2
) -> None:
    """Write an object with `torch.save`.

        smp.save(model.local_state_dict(), "/opt/ml/model/part.pt")                     # part.pt_0, part.pt_1, ...
        smp.save(model.state_dict(), "/opt/ml/model/model.pt", partial=False)           # model.pt, loads without us

    Every rank calls it. With `partial` each writes `f` with its own model-parallel rank appended; without, only rank 0
    writes. The file appears whole or not at all. Source: SMP v1, `smp.save`.
    """
    here = state.get()
    if not partial and here.rank != 0:
        return
    path = Path(f"{os.fspath(f)}_{here.pp_rank}" if partial else f)
    unfinished = path.with_name(f".{path.name}.unfinished")
    options = {} if pickle_module is None else {"pickle_module": pickle_module}
    try:
        torch.save(obj, unfinished, pickle_protocol=pickle_protocol, **options)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
