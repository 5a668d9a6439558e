"""Read a checkpoint into the tensors of a state, on every rank or on none."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.checkpoint.pieces import Piece, pieces_of
from herringbone_parallel.torch.checkpoint.reading import Reader, find
from herringbone_parallel.torch.checkpoint.states import flatten


class Loaded(NamedTuple):
    """A checkpoint that was loaded: its tag, the script's `extra`, and the reader for whatever else is in it."""

    tag: str
    extra: Any
    reader: Reader

    def user_content(self) -> Any:
        """Return what the script gave as `user_content`, or None. Unpickles: only for folders that you trust."""
        return self.reader.user_content()


def load_into(folder: Path, state: Mapping[str, Any], tag: str | None, peers: Peers) -> Loaded:
    """Read a checkpoint into a state; see `api.load`."""

    def check() -> _Found:
        reader = Reader(find(folder, tag))
        flat = flatten(state)
        pieces = [(name, piece) for name, value in flat.tensors.items() for piece in pieces_of(name, value)]
        if absent := [name for name, _ in pieces if name not in reader.manifest.tensors]:
            raise ParallelError(f"the checkpoint {reader.path} is of another model: it has no {absent[:5]}")
        for name, piece in pieces:
            reader.check(name, piece)
        _check_groups(reader, flat.groups)
        return _Found(reader.manifest.save, reader, pieces, flat.paths)

    by_rank = peers.agree_all(check, "resume")
    mine, saves = by_rank[peers.rank], {found.save for found in by_rank}
    if len(saves) > 1:
        raise ParallelError(
            f"the ranks have found different checkpoints in {folder}: the saves {sorted(saves)}. Bring the files of all"
            " hosts into one folder, or give the `tag` of a checkpoint that all of them have"
        )
    for name, piece in mine.pieces:
        mine.reader.read_into(name, piece)
    _replace_values(state, mine.reader, mine.paths)
    return Loaded(mine.reader.manifest.tag, mine.reader.extra, mine.reader)


class _Found:
    """The checkpoint that a rank has found; only the name of the save is pickled for the others."""

    def __init__(
        self, save: str, reader: Any, pieces: list[tuple[str, Piece]], paths: dict[str, tuple[str, ...]]
    ) -> None:
        self.save, self.reader, self.pieces, self.paths = save, reader, pieces, paths

    def __reduce__(self) -> Any:
        return _Found, (self.save, None, [], {})


def _check_groups(reader: Reader, groups: Mapping[str, list[dict[str, Any]]]) -> None:
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
