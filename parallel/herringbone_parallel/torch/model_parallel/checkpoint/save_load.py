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
    obj: Any,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: Any = None,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Write an object with `torch.save`.

        folder = os.environ["SM_MODEL_DIR"]
        smp.save(model.local_state_dict(), f"{folder}/part.pt")                     # part.pt_0, part.pt_1, ...
        smp.save(model.state_dict(), f"{folder}/model.pt", partial=False)           # model.pt, for plain torch

    Every rank must call it. With `partial` each rank writes `f` with its model-parallel rank appended. Replicas write
    the same content, so on a shared disk you may put `if smp.rdp_rank() == 0:` before it. Where replicas share one
    optimizer state (`shard_optimizer_state`), their contents differ: with `v3` the rank among the replicas is in the
    name, too. Without `partial`, only rank 0 writes. The file appears completely or not at all. Source: SMP v1,
    `smp.save`; `v3` as Hugging Face's Trainer passes it.
    """
    if not partial and state.get().rank != 0:
        return
    options = {} if pickle_module is None else {"pickle_module": pickle_module}
    path = _replica_path(f) if partial and v3 else _path(f, partial)
    write_whole(path, obj, pickle_protocol=pickle_protocol, **options)


def load(
    f: str | os.PathLike[str],
    map_location: Any = None,
    pickle_module: Any = None,
    pickle_load_args: Mapping[str, Any] | None = None,
    partial: bool = True,
    back_compat: bool = False,  # noqa: ARG001  Hugging Face's Trainer passes it; there is one form of these files
) -> Any:
    """Read a file of `smp.save`: with `partial` that of this model-parallel rank, otherwise the one for all ranks.

        model.load_state_dict(smp.load(f"{folder}/part.pt"))

    A file that was saved with `v3` is found as well.

    Only tensors, numbers, strings and plain containers are read, unless you trust the file and pass `pickle_module` or
    `pickle_load_args={"weights_only": False}`. Raises `ParallelError` for a file that is
    missing, truncated, or holds something else. Source: SMP v1, `smp.load`.
    """
    options = dict(pickle_load_args or {})
    if pickle_module is not None:
        options["pickle_module"] = pickle_module
    options.setdefault("weights_only", pickle_module is None)
    path = _path(f, partial)
    if partial and not path.exists() and _replica_path(f).exists():
        path = _replica_path(f)
    return read_whole(path, map_location=map_location, **options)


def write_whole(path: Path, content: Any, **options: Any) -> None:
    """Write a file with `torch.save`; it appears completely or not at all."""
    # The rank is in the name, because replicas may write the same file at the same time.
    unfinished = path.with_name(f".{path.name}.{state.get().rank}.unfinished")
    try:
        torch.save(content, unfinished, **options)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_whole(path: Path, **options: Any) -> Any:
    """Read a file with `torch.load`. Raises `ParallelError` when it is missing, damaged or not to be trusted."""
    try:
        return torch.load(path, **options)
    except FileNotFoundError as error:
        siblings = sorted(other.name for other in path.parent.glob("*")) if path.parent.is_dir() else []
        raise ParallelError(
            f"{path} does not exist; {path.parent} has {', '.join(siblings[:10]) or 'nothing in it'}"
        ) from error
    except pickle.UnpicklingError as error:
        # torch raises it for a class that `weights_only` refuses, and for bytes that are no pickle at all.
        raise ParallelError(
            f"{path} is damaged, or holds objects other than tensors and plain containers: {_first_line(error)}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise ParallelError(f"{path} cannot be read; it may be truncated: {_first_line(error)}") from error


def _path(f: str | os.PathLike[str], partial: bool) -> Path:
    return Path(f"{os.fspath(f)}_{ranks.mp_rank()}" if partial else f)


def _replica_path(f: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(f)}_{ranks.mp_rank()}_{ranks.rdp_rank()}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
