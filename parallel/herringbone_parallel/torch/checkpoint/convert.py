"""Convert a checkpoint to and from safetensors and a plain state dict, for `herringbone checkpoint convert`.

    python -m herringbone_parallel.torch.checkpoint.convert SOURCE TARGET [--optimizer]

    a folder with manifest.json     this form
    a folder with .metadata         torch's own DCP, as FSDP scripts and accelerate write it; read only
    NAME.safetensors                tensors by name
    NAME.pt, .pth, .bin, .ckpt      a state dict, or {"model": ..., "optimizer": ...}

The last line on standard output is JSON: {"tensors", "bytes", "skipped"} or {"error"}. Nothing is unpickled but torch's
tensors (`weights_only`), and the classes of DCP's metadata that `_ALLOWED` names.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import secrets
import shutil
import sys
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from herringbone_contract.checkpoint.manifest import MANIFEST, SUFFIX, checked_tag, overlapping
from herringbone_contract.checkpoint.publication import note_newest, unfinished
from herringbone_contract.checkpoint.verification import newest_tag, verify
from herringbone_contract.errors import ParallelError
from herringbone_contract.files import open_regular, replacing, sync
from herringbone_parallel.core.checkpoint_plan import Described, PlannedFile, safetensors_file
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import TYPES, Piece, plain, type_name
from herringbone_parallel.torch.checkpoint.reading import Reader
from herringbone_parallel.torch.checkpoint.saving import Contents, Saver
from herringbone_parallel.torch.checkpoint.targets import FolderTarget, on_disk
from herringbone_parallel.torch.checkpoint.writing import in_place, write

_PICKLES = (".pt", ".pth", ".bin", ".ckpt")
_DCP_METADATA = ".metadata"
# The classes of which DCP's metadata consists.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
        "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(str(dtype).removeprefix("torch.") for dtype in TYPES.values())},
    "collections": {"OrderedDict"},
    # Where the checkpoint was; Python 3.13 has the class in the second module.
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}  # fmt: skip


class Content(NamedTuple):
    """A checkpoint's model and optimizer (by name), and the names of what was left out."""

    model: dict[str, Any]
    optimizer: Mapping[str, Any] | None
    skipped: list[str]


def convert(source: Path, target: Path, with_optimizer: bool) -> dict[str, Any]:
    """Convert a checkpoint, and return what was written; the target appears complete or not at all.

    A target in a folder of checkpoints does not become the newest one; in a folder without any, it does.

    Raises `ParallelError` when the source is damaged or of no known form, and when the target exists.
    """
    if target.exists():
        raise ParallelError(f"{target} exists; name another one")
    content = read(source)
    if with_optimizer and content.optimizer is None:
        raise ParallelError(f"{source} has no optimizer state by parameter name; leave out --optimizer")
    optimizer = content.optimizer if with_optimizer else None
    if target.suffix == SUFFIX:
        if optimizer is not None:
            raise ParallelError("a safetensors file holds no optimizer's options; convert to NAME.pt")
        count = _write_safetensors(target, content.model)
    elif target.suffix in _PICKLES:
        count = _write_pickle(target, content.model, optimizer)
    else:
        count = _write_folder(target, content.model, optimizer)
    return {"tensors": len(content.model), "bytes": count, "skipped": content.skipped}


def read(source: Path) -> Content:
    """Read a checkpoint of any form that this module knows."""
    if (source / MANIFEST).exists():
        if problems := verify(source):
            raise ParallelError("; ".join(problem.text for problem in problems[:3]))
        state = Reader(source).state()
        others = [name for name in state if name not in ("model", "optimizer")]
        model = state.get("model")
        if not isinstance(model, Mapping):
            raise ParallelError(f"{source} holds no model by name, but {', '.join(state) or 'nothing'}")
        # Such as a module's extra state, which is no tensor.
        others += [f"model.{name}" for name, value in model.items() if not isinstance(value, torch.Tensor)]
        tensors = {name: value for name, value in model.items() if isinstance(value, torch.Tensor)}
        return Content(tensors, state.get("optimizer"), others)
    if (source / _DCP_METADATA).exists():
        return _read_dcp(source)
    if source.is_dir():
        raise ParallelError(f"{source} is no checkpoint: it has neither {MANIFEST} nor {_DCP_METADATA}")
    if not source.is_file():
        raise ParallelError(f"{source} is no file" if source.exists() else f"{source} does not exist")
    if source.suffix == SUFFIX:
        return Content(_read_safetensors(source), None, [])
    return _read_pickle(source)


def numbered(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form that torch's optimizers load: parameters are numbers, counted through all groups.

    >>> numbered({"state": {"b": {"step": 1}}, "param_groups": [{"lr": 1.0, "params": ["a", "b"]}]})
    {'state': {1: {'step': 1}}, 'param_groups': [{'lr': 1.0, 'params': [0, 1]}]}
    """
    names = [name for group in optimizer["param_groups"] for name in group["params"]]
    number_of = {name: number for number, name in enumerate(names)}
    return {
        "state": {number_of[name]: entry for name, entry in optimizer.get("state", {}).items()},
        "param_groups": [
            {**group, "params": [number_of[name] for name in group["params"]]} for group in optimizer["param_groups"]
        ],
    }


def _read_pickle(path: Path) -> Content:
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ParallelError(
            f"{path} is damaged, or holds objects other than tensors: {str(error).splitlines()[0]}. Load it in a script"
            " that you trust, and save its state dict"
        ) from error
    except (RuntimeError, ValueError, OSError, EOFError) as error:
        raise ParallelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, Mapping):
        raise ParallelError(f"{path} holds no state dict but a {type(content).__qualname__}")
    if not isinstance(content.get("model"), Mapping):
        return Content(_tensors(path, content), None, [])
    optimizer = content.get("optimizer")
    by_name = isinstance(optimizer, Mapping) and all(isinstance(key, str) for key in optimizer.get("state", {0: 0}))
    skipped = [str(name) for name in content if name != "model" and not (name == "optimizer" and by_name)]
    return Content(_tensors(path, content["model"]), optimizer if by_name else None, skipped)


def _tensors(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    others = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ParallelError(f"{path} is no state dict: {others[0]!r} is a {type(state[others[0]]).__qualname__}")
    return {name: plain(name, value) for name, value in state.items()}


def _read_safetensors(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        count = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + count].decode(), object_pairs_hook=_once)
        header.pop("__metadata__", None)
        tensors, filled = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            (begin, end), dtype, shape = entry["data_offsets"], TYPES[entry["dtype"]], entry["shape"]
            if any(type(number) is not int for number in (begin, end, *shape)):
                raise ValueError(f"{name!r} of the shape {shape} has the bytes {begin} to {end}, not all whole numbers")
            # A header that lies would give bytes of other tensors, or of itself, as values.
            if begin != filled or min(shape, default=0) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{name!r} of the shape {shape} has the bytes {begin} to {end}, after {filled}")
            content, filled = bytearray(data[8 + count + begin : 8 + count + end]), end
            # `frombuffer` refuses an empty buffer.
            values = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            tensors[name] = values.view(shape)
        if 8 + count + filled != len(data):
            raise ValueError(f"its header describes {8 + count + filled} bytes, and it has {len(data)}")
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise ParallelError(f"{path} is torn or no safetensors file: {error}") from error
    return tensors


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name is there twice")
    return names


class _Unpickler(pickle.Unpickler):
    """Reads DCP's metadata, and nothing else: a pickle may name any function of Python."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a checkpoint's metadata")


def _read_dcp(path: Path) -> Content:
    """Read the tensors of a checkpoint that `torch.distributed.checkpoint` wrote: its "model", otherwise all."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with open_regular(path / _DCP_METADATA) as stream:
            metadata = _Unpickler(stream).load()
        entries = metadata.state_dict_metadata
        files = {str(info.relative_path) for info in (metadata.storage_data or {}).values()}
    except OSError:
        raise
    except Exception as error:  # a damaged pickle raises almost any error
        raise ParallelError(f"{path / _DCP_METADATA} is damaged or not to be trusted: {error}") from error

    class MetadataReader(FileSystemReader):
        def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
            return metadata

    for file in files:
        if Path(file).name != file:
            raise ParallelError(f"{path / _DCP_METADATA} names the file {file!r}, outside of its folder")
        # torch opens it by its name, and would wait for a FIFO.
        open_regular(path / file).close()
    for name, entry in entries.items():
        # A load leaves what no chunk covers as the memory was.
        if isinstance(entry, TensorStorageMetadata) and not _covers(entry):
            raise ParallelError(f"{path / _DCP_METADATA}: the chunks of {name!r} do not cover it exactly once")
    try:
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with warnings.catch_warnings():
            # That one process reads it, which is the intent here.
            warnings.simplefilter("ignore")
            load(state, storage_reader=MetadataReader(path), planner=planner, no_dist=True)
    except Exception as error:
        raise ParallelError(f"{path} cannot be read: {error}") from error
    prefix = "model." if any(name.startswith("model.") for name in state) else ""
    model = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return Content(model, None, [name for name in entries if name not in state or not name.startswith(prefix)])


def _covers(entry: Any) -> bool:
    """Say whether the chunks of a tensor in DCP's metadata cover it exactly once."""
    boxes = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
    inside = all(
        len(offsets) == len(sizes) == len(entry.size)
        and all(0 <= at <= at + size <= whole for at, size, whole in zip(offsets, sizes, entry.size, strict=True))
        for offsets, sizes in boxes
    )
    return inside and sum(math.prod(sizes) for _, sizes in boxes) == math.prod(entry.size) and not overlapping(boxes)


def _write_safetensors(target: Path, model: Mapping[str, Any]) -> int:
    if "__metadata__" in model:
        raise ParallelError(f"{target}: a safetensors file cannot hold a tensor of the name '__metadata__'; rename it")
    pieces = [Piece(value, (0,) * value.dim(), tuple(value.shape)) for value in model.values()]
    described = [
        Described(name, type_name(name, value.dtype), (0,) * value.dim(), tuple(value.shape), tuple(value.shape))
        for name, value in model.items()
    ]
    numbers = range(len(pieces))
    planned = safetensors_file(target.name, described, numbers, {"format": "pt"})
    with replacing(target, synced=True) as hidden:
        plan = PlannedFile(Path(hidden).name, planned.header, planned.pieces)
        write(partial(on_disk, target.parent), [plan], described, in_place(pieces, numbers), 0, Peers.alone().host)
    return target.stat().st_size


def _write_pickle(target: Path, model: Mapping[str, Any], optimizer: Mapping[str, Any] | None) -> int:
    content = dict(model) if optimizer is None else {"model": dict(model), "optimizer": numbered(optimizer)}
    with replacing(target, synced=True) as hidden:
        torch.save(content, hidden)
    return target.stat().st_size


def _write_folder(target: Path, model: Mapping[str, Any], optimizer: Mapping[str, Any] | None) -> int:
    state = {"model": model} if optimizer is None else {"model": model, "optimizer": optimizer}
    folder, tag = target.parent, checked_tag(target.name)
    # In a folder of its own: a save in the job's folder would become the one that the job resumes from. The next save
    # of a job removes folders of this name, in case this process is killed.
    workspace = unfinished(folder, tag, secrets.token_hex(8))
    try:
        target_of = partial(FolderTarget, workspace, True)
        Saver(Peers.alone()).start(target_of, tag, state, Contents(), None, in_background=False)
        (workspace / tag).rename(target)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    sync(folder)
    if newest_tag(folder) is None:
        note_newest(folder, tag)
    return Reader(target).manifest.bytes


def main() -> int:
    """Run the program, and return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--optimizer", action="store_true")
    arguments = parser.parse_args()
    try:
        result = convert(arguments.source, arguments.target, arguments.optimizer)
    except (ParallelError, OSError) as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
