"""`smp.save` and `smp.load`: one file per rank of the pipeline, or one for all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import ranks, state


def save(
    obj: Any, f: str | os.PathLike[str], partial: bool = True, pickle_module: Any = None, pickle_protocol: int = 2
) -> None:
    """Write an object with `torch.save`.

        smp.save(model.local_state_dict(), "/opt/ml/model/part.pt")                     # part.pt_0, part.pt_1, ...
        smp.save(model.state_dict(), "/opt/ml/model/model.pt", partial=False)           # model.pt, loads without us

    Every rank calls it. With `partial` each writes `f` with its own model-parallel rank appended; replicas write the
    same, so that on a disk they share `if smp.rdp_rank() == 0:` may stand before it. Without, only rank 0 writes. The
    file appears whole or not at all. Source: SMP v1, `smp.save`.
    """
    here = state.get()
    if not partial and here.rank != 0:
        return
    options = {} if pickle_module is None else {"pickle_module": pickle_module}
    write_whole(_path(f, partial), obj, pickle_protocol=pickle_protocol, **options)


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    pickle_module: Any = None,
    pickle_load_args: Mapping[str, Any] | None = None,
    partial: bool = True,
) -> Any:
    """Read what `smp.save` wrote: with `partial` the file of this model-parallel rank, without the one for all.

        model.load_state_dict(smp.load("/opt/ml/model/part.pt"))

    Only tensors, numbers, strings and plain containers are read, unless `pickle_module` or
    `pickle_load_args={"weights_only": False}` says to trust the file. Raises `ParallelError` for a file that is
    missing, truncated, or holds something else. Source: SMP v1, `smp.load`.
    """
    options = dict(pickle_load_args or {})
    if pickle_module is not None:
        options["pickle_module"] = pickle_module
    options.setdefault("weights_only", pickle_module is None)
    return read_whole(_path(f, partial), map_location=map_location, **options)


def write_whole(path: Path, content: Any, **options: Any) -> None:
    """Write a file with `torch.save` that appears whole or not at all."""
    # Of this rank alone: replicas may write the same file, each the same content.
    unfinished = path.with_name(f".{path.name}.{state.get().rank}.unfinished")
    try:
        torch.save(content, unfinished, **options)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_whole(path: Path, **options: Any) -> Any:
    """Read a file with `torch.load`; raises `ParallelError` when it is missing, damaged or not to be trusted."""
    try:
        return torch.load(path, **options)
    except FileNotFoundError as error:
        there = sorted(other.name for other in path.parent.glob("*")) if path.parent.is_dir() else []
        raise ParallelError(
            f"{path} does not exist; {path.parent} has {', '.join(there[:10]) or 'nothing in it'}"
        ) from error
    except pickle.UnpicklingError as error:
        # What torch says of a class that weights_only refuses, and of bytes that are no pickle at all.
        raise ParallelError(
            f"{path} is damaged, or holds objects other than tensors and plain containers: {_first_line(error)}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ParallelError(f"{path} cannot be read; it may be truncated: {_first_line(error)}") from error


def _path(f: str | os.PathLike[str], partial: bool) -> Path:
    return Path(f"{os.fspath(f)}_{ranks.mp_rank()}" if partial else f)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
