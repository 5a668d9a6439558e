"""Write nothing, and read no more than needed, while a script is measured."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from herringbone_parallel.torch.measure.replacing import replaced

# The folders into which a job writes.
_FOLDERS = (
    "SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_OUTPUT_DIR", "SM_OUTPUT_INTERMEDIATE_DIR", "SM_CHECKPOINT_DIR",
)  # fmt: skip


@contextmanager
def scratch() -> Iterator[None]:
    """Give the script empty folders to write into, which are removed afterwards, and trackers that send nothing."""
    folder = Path(tempfile.mkdtemp(prefix="herringbone-measure-"))
    variables = {name: str(folder / name.lower()) for name in _FOLDERS}
    for path in variables.values():
        Path(path).mkdir()
    trackers = {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "COMET_MODE": "disabled"}
    before = dict(os.environ)
    os.environ.update({**variables, **trackers})
    try:
        with replaced(sys, dont_write_bytecode=True), replaced(torch, load=_lazily(torch.load)), _saving_nothing():
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _saving_nothing() -> Iterator[None]:
    """Leave out `torch.save`, and the renames and removals of files that it would have written.

    torch.save(state, "last.part")
    os.replace("last.part", "last.pt")      # would find no file
    """
    unwritten: set[Path] = set()

    def save(_value: Any, f: Any, *_args: Any, **_kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            unwritten.add(Path(f).absolute())

    def without(change: Any) -> Any:
        @functools.wraps(change)
        def changed(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, (str, os.PathLike)) or kwargs or Path(path).absolute() not in unwritten:
                return change(path, *args, **kwargs)
            unwritten.remove(Path(path).absolute())
            # The new name; a removal has none.
            for target in args:
                save(None, target)
            return type(path)(*args) if args and isinstance(path, Path) else None

        return changed

    moves = {name: without(getattr(os, name)) for name in ("rename", "replace", "remove", "unlink")}
    # Python 3.10's pathlib keeps functions of os.
    methods = {name: without(getattr(Path, name)) for name in ("rename", "replace", "unlink")}
    with replaced(torch, save=save), replaced(os, **moves), replaced(Path, **methods):
        yield


def _lazily(load: Any) -> Any:
    """Return `torch.load` that maps files into memory, because no operation reads most of the values."""

    @functools.wraps(load)
    def mapped(source: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["map_location"] = "cpu"
        if args:
            args = ("cpu", *args[1:])
            kwargs.pop("map_location")
        if isinstance(source, (str, os.PathLike)) and kwargs.get("mmap") is None:
            try:
                return load(source, *args, **{**kwargs, "mmap": True})
            except (RuntimeError, ValueError):
                # The old format cannot be mapped.
                kwargs.pop("mmap", None)
        return load(source, *args, **kwargs)

    return mapped
