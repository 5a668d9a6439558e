"""`smp.save` and `smp.load`: one file per rank of the pipeline, or one for all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_contract.files import replacing
from herringbone_parallel.torch.model_parallel import state


def save(
    obj: Any,
    f: str | os.PathLike[str],
    partial: bool = True,
    pickle_module: Any = None,
    pickle_protocol: int = 2,
    v3: bool = False,  # noqa: ARG001  SMP v1's signature; see the docstring
) -> None:
    """Write an object with `torch.save`.

        folder = os.environ["SM_MODEL_DIR"]
        smp.save(model.local_state_dict(), f"{folder}/part.pt")                     # part.pt_0, part.pt_1, ...
        smp.save(model.state_dict(), f"{folder}/model.pt", partial=False)           # model.pt, for plain torch

    Every rank must call it. With `partial` each rank writes `f` with its model-parallel rank appended. Replicas write
    the same content, so on a shared disk you may put `if smp.rdp_rank() == 0:` before it. Without `partial`, only rank
    0 writes. The file appears completely or not at all. `v3` asks for a file for each shard of an optimizer's state; it
    has no effect, because states are gathered before they are saved. Source: SMP v1, `smp.save`; `v3` as Hugging Face's
    Trainer passes it.
    """
    if not partial and state.get().rank != 0:
        return
    options = {} if pickle_module is None else {"pickle_module": pickle_module}
    write_whole(_path(f, partial), obj, pickle_protocol=pickle_protocol, **options)


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

    Only tensors, numbers, strings and plain containers are read, unless you trust the file and pass `pickle_module` or
    `pickle_load_args={"weights_only": False}`. Raises `ParallelError` for a file that is
    missing, truncated, or holds something else. Source: SMP v1, `smp.load`.
    """
    options = dict(pickle_load_args or {})
    if pickle_module is not None:
        options["pickle_module"] = pickle_module
    options.setdefault("weights_only", pickle_module is None)
    return read_whole(_path(f, partial), map_location=map_location, **options)


def write_whole(path: Path, content: Any, **options: Any) -> None:
    """Write a file with `torch.save`; it appears completely or not at all."""
    # Replicas may write the same file at the same time.
    with replacing(path, synced=True) as partial:
        torch.save(content, partial, **options)


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
    return Path(f"{os.fspath(f)}_{state.ranks.mp_rank()}" if partial else f)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
