"""Read a checkpoint into the tensors of a state, on every rank or on none."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import pieces_by_name
from herringbone_parallel.torch.checkpoint.reading import DamagedError, Reader, pass_over
from herringbone_parallel.torch.checkpoint.states import flatten


class Loaded(NamedTuple):
    """A checkpoint that was loaded: its tag, the script's `extra`, and the reader for whatever else is in it."""

    tag: str
    extra: Any
    reader: Reader

    def user_content(self) -> Any:
        """Return what the script gave as `user_content`, or None. Unpickles: only for folders that you trust."""
        return self.reader.user_content()


def load_into(folder: Path, state: Mapping[str, Any], tag: str | Reader | None, peers: Peers) -> Loaded:
    """Read a checkpoint into a state; see `api.load`."""

    def check() -> _Found:
        reader = tag if isinstance(tag, Reader) else Reader.find(folder, tag, passed)
        flat = flatten(state)
        pieces = pieces_by_name(flat.tensors)
        if absent := [name for name, _ in pieces if name not in reader.manifest.tensors]:
            raise ParallelError(f"the checkpoint {reader.path} is of another model: it has no {absent[:5]}")
        views = [pair for name, piece in pieces for pair in reader.views(name, piece)]
        _check_groups(reader, flat.groups)
        return _Found(reader, views, flat.paths)

    # Nothing is changed before all ranks have checked what they read. What some rank finds damaged counts as absent.
    passed: dict[str, str] = {}
    while True:
        try:
            mine, saves = peers.agree_same(check, "resume", lambda found: found.reader.manifest.save)
            break
        except Exception as error:
            pass_over(error, passed, peers.gather)
            if tag is not None:
                raise DamagedError(*next(iter(passed.items()))) from error
    if len(saves) > 1:
        raise ParallelError(
            f"the ranks have found different checkpoints in {folder}: the saves {sorted(saves)}. Bring the files of all"
            " hosts into one folder, or give the `tag` of a checkpoint that all of them have"
        )
    for target, source in mine.views:
        target.copy_(source)
    _replace_values(state, mine.reader, mine.paths)
    return Loaded(mine.reader.manifest.tag, mine.reader.extra, mine.reader)


class _Found(NamedTuple):
    """The checkpoint that this rank has found: pairs of views to copy, and the paths of its state's names."""

    reader: Reader
    views: list[tuple[torch.Tensor, torch.Tensor]]
    paths: dict[str, tuple[str, ...]]


def _check_groups(reader: Reader, groups: Mapping[str, list[dict[str, Any]]]) -> None:
    """Raise `ParallelError` for other groups than the checkpoint has, and for a damaged value besides the tensors.

    It decodes all of these values, because a damaged one found later would leave a half-loaded model.
    """
    _ = reader.extra, reader.values(), [reader.groups(prefix) for prefix in reader.manifest.extra.get("groups", {})]
    for prefix, own in groups.items():
        saved = reader.groups(prefix)
        if saved is not None and len(saved) != len(own):
            raise ParallelError(
                f"the state is of another optimizer: it has {len(saved)} groups of parameters, this one {len(own)}"
            )


def _replace_values(state: Mapping[str, Any], reader: Reader, paths: Mapping[str, tuple[str, ...]]) -> None:
    for name, value in reader.values().items():
        if name in paths:
            inner = _inner(state, paths[name][:-1])
            inner[paths[name][-1]] = value
    for prefix in reader.manifest.extra.get("groups", {}):
        try:
            inner = _inner(state, tuple(prefix.split(".")))
        except KeyError:
            continue
        for group, saved in zip(inner.get("param_groups", ()), reader.groups(prefix) or (), strict=False):
            group.update({key: value for key, value in saved.items() if key != "params"})


def _inner(state: Mapping[str, Any], path: tuple[str, ...]) -> MutableMapping[str, Any]:
    inner: Any = state
    for key in path:
        inner = inner[key]
    return inner  # type: ignore[no-any-return]
