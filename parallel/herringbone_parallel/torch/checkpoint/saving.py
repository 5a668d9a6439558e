"""Save a checkpoint: complete or absent, and in the background on request.

    main thread    [1] describe the pieces of this rank, and make the plan that all ranks share; the plan is kept while
                       no rank's description changes
                   [2] copy what this rank writes to the CPU: training continues after this
    background     [3] write this rank's files into a hidden folder, and wait for the disk
                   [4] one rank writes the manifest, renames the folder to its tag, and then `newest`

A job that is killed before the rename of [4] leaves a hidden folder, which the next save of all ranks removes. Hosts
may have folders of their own: then one rank of each host does [4], and each folder has the files of its host's ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from herringbone_contract.checkpoint.manifest import (
    MANIFEST,
    NEWEST,
    REPLACED,
    UNFINISHED,
    USER_CONTENT,
    File,
    Manifest,
    Tensor,
    checked_tag,
    to_json,
)
from herringbone_contract.checkpoint.verification import hidden, hidden_tag
from herringbone_parallel.torch.checkpoint.peers import Peers, host_name
from herringbone_parallel.torch.checkpoint.pieces import Piece, pieces_of, type_name
from herringbone_parallel.torch.checkpoint.plan import Described, assign, files
from herringbone_parallel.torch.checkpoint.states import GROUPS, Flat, encode, flatten, merge_groups
from herringbone_parallel.torch.checkpoint.writing import (
    Staged,
    Staging,
    Written,
    in_place,
    sync_folder,
    write,
    write_whole,
)

# In the hidden folder while it is written: ranks that see it share the folder with the first rank.
_SHARED = ".shared"
ABSENT: Any = object()


class Contents(NamedTuple):
    """The parts of a checkpoint besides the state; all of them are the first rank's.

    `mesh` are the degrees of parallelism, for people. `extra` is JSON with tuples and small tensors. `user_content` is
    any object and is pickled, so whoever reads it must trust the folder.
    """

    mesh: Mapping[str, int] = {}
    extra: Any = None
    user_content: Any = ABSENT


class Plan(NamedTuple):
    """The plan of a save: each rank's pieces, which of them it writes, and the names in the parameter groups."""

    digests: list[bytes]
    described: list[list[Described]]
    chosen: list[list[int]]
    groups: list[dict[str, Any]]


class Background:
    """A save in a thread of its own, and the error that ended it."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._failure: BaseException | None = None
        # Whether the script knows of the failure.
        self._raised = False
        # Not a daemon: a script that ends waits for its last checkpoint.
        self._thread = threading.Thread(target=self._run, name="checkpoint")
        self._thread.start()

    def finish(self, timeout: float | None = None, *, again: bool = True) -> bool:
        """Wait, and return whether the save is over. Raises its error; without `again` only for the first time."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None and (again or not self._raised):
            self._raised = True
            raise self._failure
        return True

    def _run(self) -> None:
        try:
            self._save()
        except BaseException as error:  # noqa: BLE001  raised by `finish`
            self._failure = error
        # It refers to the copies.
        del self._save


class Saver:
    """Saves to one folder after another; at most one save runs at a time.

    saver = Saver(Peers.default())
    saver.start("checkpoints", "step-100", {"model": model.state_dict()}, in_background=True)
    saver.finish()
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._staging = Staging()
        self._plan: Plan | None = None
        self._background: Background | None = None

    def start(
        self,
        folder: str | os.PathLike[str],
        tag: str,
        state: Mapping[str, Any],
        contents: Contents,
        on_complete: Callable[[], None] | None,
        in_background: bool,
    ) -> Background | None:
        """Save, or begin to; every rank must call. An earlier save is finished first, and its error raised."""
        self.finish()
        peers = self._peers
        save = secrets.token_hex(8)
        try:
            begun = peers.agree_all(lambda: _begin(Path(folder), tag, save, state, contents, peers.rank), "save")
        except BaseException:
            shutil.rmtree(_unfinished(Path(folder), tag, save), ignore_errors=True)
            raise
        job = _Job(peers, Path(folder), tag, begun[0].save, [ours.host for ours in begun], on_complete)
        ours = begun[peers.rank].local
        assert ours is not None
        try:
            plan = self._planned(ours, [other.digest for other in begun])
        except BaseException:
            job.discard()
            raise
        copy = self._staging.copy if in_background else in_place
        staged: Staged | Exception
        try:
            staged = copy(ours.pieces, plan.chosen[peers.rank])
        except Exception as error:  # noqa: BLE001  raised where all ranks hear of it
            staged = error
        # The pieces are dropped here: the job must not keep the memory of a model that the script drops.
        job.fill(plan, ours, dict(contents.mesh), staged)
        if not in_background:
            job.run()
            return None
        self._background = Background(job.run)
        return self._background

    def finish(self, blocking: bool = True) -> bool:
        """Wait for the save in the background, and return whether none runs. Raises a new error of it."""
        return self._background is None or self._background.finish(None if blocking else 0.0, again=False)

    def _planned(self, ours: _Local, digests: list[bytes]) -> Plan:
        # All ranks have the plan, or none: each got the same digests, in this save and in the one before.
        if self._plan is None or self._plan.digests != digests:
            local = (ours.described, _names_only(ours.flat.groups))
            answers = self._peers.gather(local)
            described = [pieces for pieces, _ in answers]
            # Every rank computes the same plan, or the same error.
            self._plan = Plan(digests, described, assign(described), [groups for _, groups in answers])
        return self._plan


class _Local(NamedTuple):
    """This rank's part of a save; never sent."""

    flat: Flat
    pieces: list[Piece]
    described: list[Described]
    content: bytes | None
    # As JSON, because the options of an optimizer change with every step.
    groups: dict[str, list[dict[str, Any]]]
    extra: Any


class _Begun:
    """A description of this rank's part for the other ranks. The part itself stays behind when this is pickled."""

    def __init__(self, digest: bytes, save: str, host: str, local: _Local | None) -> None:
        self.digest, self.save, self.host, self.local = digest, save, host, local

    def __reduce__(self) -> Any:
        return _Begun, (self.digest, self.save, self.host, None)


def _begin(folder: Path, tag: str, save: str, state: Mapping[str, Any], contents: Contents, rank: int) -> _Begun:
    checked_tag(tag)
    flat = flatten(state)
    pieces: list[Piece] = []
    described: list[Described] = []
    for name, value in flat.tensors.items():
        for piece in pieces_of(name, value):
            pieces.append(piece)
            described.append(
                Described(
                    name, type_name(name, piece.tensor.dtype), piece.offsets, tuple(piece.tensor.shape), piece.shape
                )
            )
    digest = hashlib.sha256(repr((described, _names_only(flat.groups))).encode()).digest()
    content, extra = None, None
    # Without the names, which are a part of the plan.
    groups = {
        prefix: [
            {key: encode(value, f"{prefix}.{GROUPS}.{key}") for key, value in group.items() if key != "params"}
            for group in inner
        ]
        for prefix, inner in flat.groups.items()
    }
    if rank == 0:
        extra = encode(contents.extra, "extra")
        if contents.user_content is not ABSENT:
            buffer = io.BytesIO()
            torch.save(contents.user_content, buffer)
            content = buffer.getvalue()
        unfinished = _unfinished(folder, tag, save)
        unfinished.mkdir(parents=True)
        (unfinished / _SHARED).touch()
    return _Begun(digest, save, host_name(), _Local(flat, pieces, described, content, groups, extra))


class _Description(NamedTuple):
    """A rank's part of a state besides the tensors, all of it JSON.

    `paths` are those of `Flat`, and `groups` the options of its groups without the names of the parameters.
    """

    values: dict[str, Any]
    paths: dict[str, tuple[str, ...]]
    groups: dict[str, list[dict[str, Any]]]


class _Job:
    """One save, from the copies on: [3] and [4] of the module's picture."""

    def __init__(
        self,
        peers: Peers,
        folder: Path,
        tag: str,
        save: str,
        hosts: list[str],
        on_complete: Callable[[], None] | None,
    ) -> None:
        self._peers, self._folder, self._tag, self._save = peers, folder, tag, save
        self._hosts, self._on_complete = hosts, on_complete
        self._path = _unfinished(folder, tag, save)
        self._time = time.time()
        # Set by `run`: whether this rank makes, renames and removes folders.
        self._manages = peers.rank == 0

    def fill(self, plan: Plan, ours: _Local, mesh: dict[str, int], staged: Staged | Exception) -> None:
        """Take what is written, without the pieces."""
        self._plan, self._staged, self._mesh = plan, staged, mesh
        self._content, self._extra = ours.content, ours.extra
        self._described = _Description(ours.flat.values, ours.flat.paths, ours.groups)

    def run(self) -> None:
        peers = self._peers
        try:
            parts = peers.agree_all(self._write, "save")
            peers.agree(lambda: self._complete(parts), "save")
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written."""
        if self._manages:
            shutil.rmtree(self._path, ignore_errors=True)

    def _write(self) -> tuple[Written, _Description]:
        rank = self._peers.rank
        if isinstance(self._staged, Exception):
            raise self._staged
        if not (self._path / _SHARED).exists():
            # A folder of this host's own.
            self._manages = rank == self._hosts.index(self._hosts[rank])
            self._path.mkdir(parents=True, exist_ok=True)
        described = self._plan.described[rank]
        planned = files(rank, described, self._plan.chosen[rank], self._save)
        written = write(self._path, planned, described, self._staged, rank)
        if self._content is not None:
            write_whole(self._path / USER_CONTENT, self._content)
            written.files[USER_CONTENT] = _whole_file(self._content, rank)
        return written, self._described

    def _complete(self, parts: list[tuple[Written, _Description]]) -> None:
        if not self._manages:
            return
        write_whole(self._path / MANIFEST, to_json(self._manifest(parts)))
        (self._path / _SHARED).unlink(missing_ok=True)
        sync_folder(self._path)
        final = self._folder / self._tag
        if final.is_dir():
            # A folder cannot take the place of another in one step: until the second rename, readers find this one.
            final.rename(self._path.with_name(self._path.name.removesuffix(UNFINISHED) + REPLACED))
        self._path.rename(final)
        sync_folder(self._folder)
        note_newest(self._folder, self._tag)
        self._clean()
        if self._on_complete is not None:
            self._on_complete()

    def _clean(self) -> None:
        """Remove the hidden folders of saves that were killed."""
        for left in hidden(self._folder):
            tag = hidden_tag(left)
            if tag != self._tag and not self._peers.only_savers:
                # Other ranks may be saving there.
                continue
            if left.name.endswith(REPLACED) and not (self._folder / tag).exists():
                # The kill came between the two renames: this is the only checkpoint of its tag.
                with contextlib.suppress(OSError):
                    left.rename(self._folder / tag)
            else:
                shutil.rmtree(left, ignore_errors=True)

    def _manifest(self, parts: list[tuple[Written, _Description]]) -> Manifest:
        wholes = {piece.name: piece for pieces in self._plan.described for piece in pieces}
        chunks: dict[str, list[Any]] = {name: [] for name in wholes}
        paths: dict[str, tuple[str, ...]] = {}
        values: dict[str, Any] = {}
        groups = merge_groups(self._plan.groups)
        # The first rank last: its values and options count.
        for written, rank in reversed(parts):
            for name, chunk in written.chunks:
                chunks[name].append(chunk)
            values.update(rank.values)
            paths.update(rank.paths)
            for prefix, options in rank.groups.items():
                for group, own in zip(groups[prefix], options, strict=True):
                    group.update(own)
        return Manifest(
            save=self._save,
            tag=self._tag,
            time=self._time,
            torch=str(torch.__version__),
            world_size=self._peers.size,
            mesh=self._mesh,
            files={name: file for written, _ in parts for name, file in written.files.items()},
            tensors={
                name: Tensor(whole.dtype, whole.shape, tuple(chunks[name])) for name, whole in sorted(wholes.items())
            },
            extra={
                # Only names whose keys have dots themselves: the others split at the dots.
                "paths": {name: path for name, path in paths.items() if tuple(name.split(".")) != path},
                "values": values,
                "groups": groups,
                "extra": self._extra,
            },
        )


def note_newest(folder: Path, tag: str) -> None:
    """Make this checkpoint the newest one."""
    # A rename is atomic: a reader finds the old name or the new one, never half of it.
    # A name of its own, because groups of ranks may write it at the same time.
    unfinished = folder / f".{NEWEST}.{secrets.token_hex(8)}{UNFINISHED}"
    try:
        write_whole(unfinished, f"{tag}\n".encode())
        unfinished.replace(folder / NEWEST)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(folder)


def _names_only(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix: [{"params": list(group["params"])} for group in inner] for prefix, inner in groups.items()}


def _unfinished(folder: Path, tag: str, save: str) -> Path:
    return folder / f".{tag}.{save}{UNFINISHED}"


def _whole_file(content: bytes, rank: int) -> File:
    return File(len(content), len(content), zlib.crc32(content), rank, host_name())
